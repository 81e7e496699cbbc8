"""Tokens by whose text one knows that a turn or a text ends there: files often name one of
several only. The rule is llama.cpp's: they count whatever type the file gives them."""

from __future__ import annotations

from collections.abc import Collection

END_TEXTS = frozenset(
    {
        "</s>",
        "<EOT>",
        "_<EOT>",
        "[EOS]",
        "[EOT]",
        "<end_of_turn>",
        "<end_of_utterance>",
        "<eos>",
        "<turn|>",
        "<|call|>",
        "<|calls|>",
        "<|end_of_text|>",
        "<|endoftext|>",
        "<|end|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|flush|>",
        "<|im_end|>",
        "<|return|>",
        "<|tool_response>",
        "<｜end▁of▁sentence｜>",  # noqa: RUF001
    }
)

# Tokens between files and around a gap to fill: an answer ends before them. The first of the
# texts that a vocabulary has counts, if its file does not name the token.
FILL_IN_TEXTS = {
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}

ALL_TEXTS = END_TEXTS.union(*FILL_IN_TEXTS.values())


def ends_no_turn(texts: Collection[str]) -> str | None:
    """The one of END_TEXTS that is no end in a vocabulary that has all of `texts`: where
    "<|end|>" only ends a channel, and "</s>" is a tag of HTML."""
    calls = "<|call|>" in texts or "<|calls|>" in texts
    if "<|end|>" in texts and calls and ("<|return|>" in texts or "<|flush|>" in texts):
        return "<|end|>"
    return "</s>" if "</s>" in texts and "<|tool_response>" in texts else None
