"""Text to token ids and back, and chat messages to prompts, as a GGUF file defines them."""

from pykv.tokenizer.stream import StreamDecoder
from pykv.tokenizer.template import ChatTemplate
from pykv.tokenizer.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "StreamDecoder", "Tokenizer"]
