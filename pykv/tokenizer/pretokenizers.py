"""How a text is cut into words before merging: one entry per `tokenizer.ggml.pre`."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

from pykv._core import UnsupportedModel

# The patterns are part of the models: they are what each vocabulary was trained with.
# A pattern cuts the pieces that the one before it left; what no pattern matches stays
# a piece of its own.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


@dataclass(frozen=True)
class PreTokenizer:
    """`whole_words`: a word that is itself a token is not merged. `add_bos`: the default
    where the file does not say."""

    patterns: tuple[str, ...]
    whole_words: bool = False
    add_bos: bool = False

    def build(self) -> pre_tokenizers.PreTokenizer:
        cuts = [pre_tokenizers.Split(Regex(p), "isolated") for p in self.patterns]
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([*cuts, to_bytes])


_DIGIT_BY_DIGIT = PreTokenizer((r"\p{N}", _GPT2))
_PLAIN = PreTokenizer((_GPT2,))
_LLAMA3 = PreTokenizer(
    (rf"(?:{_CONTRACTIONS})|{_WORDS}|\p{{N}}{{1,3}}|{_REST}",), whole_words=True, add_bos=True
)
_QWEN2 = PreTokenizer((rf"(?:{_CONTRACTIONS})|{_WORDS}|\p{{N}}|{_REST}",))
_DEFAULT = PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"))

_BY_NAME = {
    "smollm": _DIGIT_BY_DIGIT,
    "starcoder": _DIGIT_BY_DIGIT,
    "refact": _DIGIT_BY_DIGIT,
    "command-r": _DIGIT_BY_DIGIT,
    "codeshell": _DIGIT_BY_DIGIT,
    "gpt-2": _PLAIN,
    "phi-2": _PLAIN,
    "olmo": _PLAIN,
    "mpt": _PLAIN,
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "default": _DEFAULT,
}


def pre_tokenizer(name: str) -> PreTokenizer:
    """Raises `UnsupportedModel` naming the supported ones."""
    found = _BY_NAME.get(name)
    if found is None:
        raise UnsupportedModel(
            f"[Tokenizer.from_gguf] pre-tokenizer {name!r} is not supported; "
            f"supported: {', '.join(sorted(_BY_NAME))}"
        )
    return found
