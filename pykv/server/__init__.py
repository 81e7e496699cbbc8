"""Floor 8. The data plane: an OpenAI- and llama-server-compatible HTTP API.

`create_app(runtime)` gives the ASGI application. The life of a request:

    body.py         bytes -> JSON object           limits.py   every bound, in one table
    fields.py       what happens to each field     reader.py   typed access
    settings.py     object -> prompt and Settings
    service.py      tokenize, check the length, submit to the engine
    answer.py       engine events -> parts         text.py     characters, stop strings
    frame.py        parts -> JSON                  sse.py      JSON -> events
    app.py          routes, request ids, errors    errors.py   the error objects
"""

from pykv.server.app import create_app

__all__ = ["create_app"]
