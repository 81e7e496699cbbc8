"""Tokens by whose text one knows that a turn or a text ends there: files often name one
of several only. They count if the file marks them as control or user-defined."""

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
        "<|call|>",
        "<|end_of_text|>",
        "<|endoftext|>",
        "<|end|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|file_sep|>",
        "<|fim_pad|>",
        "<|im_end|>",
        "<|repo_name|>",
        "<|return|>",
        "<｜end▁of▁sentence｜>",  # noqa: RUF001
    }
)

# Also tags of HTML, where a vocabulary has them as user-defined tokens (Gemma).
NEVER_PLAIN = frozenset({"</s>"})

# In the "harmony" format <|end|> only ends a channel; <|return|> ends the turn.
HARMONY = frozenset({"<|end|>", "<|return|>"})
