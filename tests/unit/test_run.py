"""`pykv run`: the chat's branches, its commands, and a terminal with Ctrl-C."""

from __future__ import annotations

import codecs
import io
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pykv import Busy, Engine, InvalidArgument
from pykv.cli import main, run
from pykv.cli.chat import Chat
from tests.reference.gguf_files import TinyModel, write_tiny_model

ROOT = Path(__file__).resolve().parents[2]
GREEDY = {"temperature": 0.0}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("run") / "tiny.gguf")


@pytest.fixture(scope="module")
def engine(tiny: Path) -> Iterator[Engine]:
    with Engine.open(tiny, ctx_size=1024, threads=1) as opened:
        yield opened


@pytest.fixture
def chat(engine: Engine) -> Chat:
    return Chat(engine, "", 8, GREEDY)


# --- the chat --------------------------------------------------------------------


def test_an_answer_becomes_part_of_the_branch(chat: Chat) -> None:
    answer = chat.ask("the cat")
    text = "".join(answer)
    assert chat.exchanges == []
    completion = answer.keep()
    assert chat.exchanges[0].question == "the cat"
    assert chat.exchanges[0].answer == completion.text == text
    assert chat.last is completion and completion.generated_tokens == 8


def test_the_next_turn_reuses_the_last(chat: Chat) -> None:
    first = chat.ask("a long question, said for the first time").keep()
    second = chat.ask("and now?").keep()
    assert second.cached_tokens >= first.prompt_tokens  # and the answer up to a broken character


def test_branches_share_what_was_said_before(chat: Chat) -> None:
    chat.ask("in the beginning").keep()
    common = chat.tokens()
    chat.fork("other")
    a = chat.ask("go left").keep()
    assert chat.branches == {"main": 1, "other": 2}
    chat.switch("main")
    b = chat.ask("go right").keep()
    assert min(a.cached_tokens, b.cached_tokens) > common // 2
    assert [e.question for e in chat.exchanges] == ["in the beginning", "go right"]
    chat.switch("other")
    assert [e.question for e in chat.exchanges] == ["in the beginning", "go left"]


def test_a_rewound_question_gets_the_same_answer_again(chat: Chat) -> None:
    chat.ask("one").keep()
    first = chat.ask("two").keep()
    (taken,) = chat.rewind(1)
    assert taken.question == "two" and len(chat.exchanges) == 1
    again = chat.ask("two").keep()
    assert again.text == first.text
    assert again.cached_tokens == again.prompt_tokens - 1


def test_the_system_message_comes_first(chat: Chat, engine: Engine) -> None:
    chat.system = "be brief"
    chat.ask("hi").keep()
    text = engine.tokenizer.decode(engine.tokens([{"role": "system", "content": "be brief"}]))
    assert chat._render("x").startswith(text.split("<|im_end|>")[0])


def test_a_question_that_does_not_fit_is_not_kept(chat: Chat) -> None:
    with pytest.raises(InvalidArgument):
        chat.ask("the cat sat " * 500)
    assert chat.exchanges == []


def test_what_branches_refuse(chat: Chat) -> None:
    with pytest.raises(InvalidArgument, match="there is a branch 'main' already"):
        chat.fork("main")
    with pytest.raises(InvalidArgument, match="no branch 'x'; there are main"):
        chat.switch("x")
    with pytest.raises(InvalidArgument, match="this branch has 0"):
        chat.rewind(1)
    assert chat.free_name() == "2"
    chat.fork("2")
    assert chat.free_name() == "3"


# --- lines from a pipe -----------------------------------------------------------


@pytest.fixture
def say(tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Any:
    def ran(*lines: str, flags: tuple[str, ...] = (), code: int = 0) -> Any:
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        command = ["run", str(tiny), "-c", "1024", "-n", "6", "--temp", "0", "-t", "1", *flags]
        assert main.main(command) == code
        return capsys.readouterr()

    return ran


def test_each_line_is_answered(say: Any, engine: Engine) -> None:
    chat = Chat(engine, "", 6, GREEDY)
    wanted = ""
    for question in ("the cat", "on a mat"):
        answer = chat.ask(question).keep()
        wanted += f"{run.printable(answer.text)}\n"
        if answer.finish_reason == "length":
            wanted += "(cut at --max-tokens)\n"
    assert say("the cat", "", "on a mat").out == wanted


def test_a_conversation_that_outgrows_the_context_says_what_to_do(say: Any) -> None:
    told = say("a" * 800, "b" * 800, "/clear", "b" * 800, flags=("-n", "1000"), code=1)
    assert told.out.count("(cut at the end of the context; /rewind or /clear makes room)\n") == 2
    (line,) = told.err.splitlines()
    assert "the context is 1,024; /rewind takes exchanges back, /clear all of them" in line


def test_commands(say: Any) -> None:
    out = say(
        "/system", "/system be brief", "/system", "one", "/fork", "two", "/switch main",
        "/switch", "/rewind", "/clear", "/stats", "/help", "/exit", "never read",
    ).out  # fmt: skip
    for text in (
        "(none)\n", "be brief\n", "* main, exchanges: 1\n  2, exchanges: 2\n",
        "(taken back: one)\n", "branch         main, exchanges: 0\n", "reused in all", "of 1,024",
        "/retry         answer the last question again",
    ):  # fmt: skip
        assert text in out
    assert out.count("(cut at") == 2


def test_retry_answers_again_with_another_seed(say: Any) -> None:
    reports = say("one", "/retry", "/switch", flags=("--json", "--temp", "2", "--top-k", "0"))
    first, second, branches = reports.out.splitlines()[:2] + [reports.out.splitlines()[-1]]
    assert json.loads(first)["text"] != json.loads(second)["text"]
    assert branches == "* main, exchanges: 1"


def test_retry_without_a_question_says_so(say: Any) -> None:
    assert "/retry needs a question" in say("/retry", code=1).err


def test_a_retry_that_fails_loses_nothing(
    say: Any, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    asked: list[str] = []
    ask = Chat.ask

    def once(chat: Chat, question: str) -> Any:
        asked.append(question)
        if len(asked) > 1:
            raise Busy("too many requests wait")
        return ask(chat, question)

    monkeypatch.setattr(Chat, "ask", once)
    done = say("one", "/retry", "/switch", code=1)
    assert asked == ["one", "one"] and "too many requests wait" in done.err
    assert "* main, exchanges: 1" in done.out


def test_json_has_the_figures(say: Any) -> None:
    report = json.loads(say("the cat", flags=("--json",)).out)
    assert (report["branch"], report["finish_reason"]) == ("main", "length")
    assert report["generated_tokens"] == 6 and report["generate_seconds"] > 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/nope x", "there is no command /nope; /help lists them"),
        ("/rewind", "1 exchanges cannot be taken back; this branch has 0"),
        ("/rewind -1", "takes a number of exchanges, not '-1'"),
        ("/switch x", "no branch 'x'"),
        ("the cat " * 1000, "[Engine.submit]"),
    ],
)
def test_a_line_that_fails_is_said_and_the_chat_goes_on(say: Any, line: str, message: str) -> None:
    done = say(line, "//slash", "/stats", code=1)
    assert "error:" in done.err and message in done.err
    assert "exchanges: 1" in done.out


def test_a_line_can_go_on_in_the_next(say: Any) -> None:
    out = say("one\\", "two", "/rewind", "/stats").out
    assert "(taken back: one)" in out and "exchanges: 0" in out


def test_answers_cannot_move_the_cursor() -> None:
    assert run.printable("a\tb\n\x1b[2J\x07é") == "a\tb\n\\x1b[2J\\x07é"


# --- a terminal ------------------------------------------------------------------

# Whoever runs the tests in the background may ignore Ctrl-C, which children inherit.
OWN_TERMINAL = """
import fcntl, os, signal, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.executable, [sys.executable, "-m", "pykv", *sys.argv[1:]])
"""


class Screen:
    """`pykv` on a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self._terminal, inner = os.openpty()
        environment = {**os.environ, "TERM": "dumb", "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            [sys.executable, "-c", OWN_TERMINAL, *arguments],
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
            env=environment,
        )
        os.close(inner)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.text = ""

    def wait_for(self, text: str, seconds: float = 300) -> str:
        """What came until `text` did; what follows is for the next call."""
        end = time.monotonic() + seconds
        while text not in self.text:
            self.read_more(max(0, end - time.monotonic()))
        before, _, self.text = self.text.partition(text)
        return before

    def read_more(self, seconds: float = 300) -> None:
        ready, _, _ = select.select([self._terminal], [], [], seconds)
        assert ready, f"nothing more than {self.text!r}"
        self.text += self._decoder.decode(os.read(self._terminal, 65536))

    def type(self, keys: str) -> None:
        os.write(self._terminal, keys.encode())

    def interrupt_prompt(self, answer: str) -> None:
        """Ctrl-C until it is answered: Python's readline loses one that comes between its
        printing of the prompt and its waiting for keys."""
        for _ in range(150):
            self.type("\x03")
            end = time.monotonic() + 2
            while answer not in self.text and (left := end - time.monotonic()) > 0:
                if select.select([self._terminal], [], [], left)[0]:
                    self.read_more()
            if answer in self.text:
                break
        self.wait_for(answer)

    def end(self) -> int:
        return self._process.wait(timeout=300)

    def __enter__(self) -> Screen:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose answers have room for minutes."""
    spec = TinyModel(context=1 << 20)
    return write_tiny_model(tmp_path_factory.mktemp("endless") / "endless.gguf", spec)


def test_a_terminal_with_ctrl_c(endless: Path) -> None:
    flags = ("--temp", "0", "-n", "1000000", "-c", "200000", "-t", "1")
    with Screen("run", str(endless), *flags) as screen:
        screen.wait_for("/help lists commands, Ctrl-D ends.")
        screen.wait_for("main> ")
        screen.interrupt_prompt("(Ctrl-D or /exit ends)")  # nothing but a hint
        screen.wait_for("main> ")
        screen.type("the cat\n")
        screen.wait_for("the cat\r\n")  # the terminal's echo
        while len(screen.text) < 20:  # the answer has begun
            screen.read_more()
        screen.type("\x03")
        screen.wait_for("(cancelled)")
        screen.wait_for("main> ")
        screen.type("/stats\n")
        screen.wait_for("exchanges: 1")  # what there was of the answer
        screen.wait_for("main> ")
        screen.type("/fork b\n")
        screen.wait_for("b> ")
        screen.type("one\\\n")
        screen.wait_for("… ")
        screen.interrupt_prompt("(Ctrl-D or /exit ends)")
        screen.wait_for("b> ")
        screen.type("\x04")
        assert screen.end() == 0
