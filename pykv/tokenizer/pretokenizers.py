"""How a text is cut into words before merging: one entry per `tokenizer.ggml.pre`."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

from pykv._core import UnsupportedModel

# The patterns are part of the models: they are what each vocabulary was trained with.
# A pattern cuts the pieces that the one before it left; what no pattern matches stays
# a piece of its own.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_CONTRACTIONS = r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]"
_WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
# Words that end where a lower-case letter is followed by a capital.
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_HEAD = r"[^\r\n\p{L}\p{N}]?"
_TITLE, _CAPITALS = f"{_HEAD}{_UPPER}*{_LOWER}+", f"{_HEAD}{_UPPER}+{_LOWER}*"
_REST_SLASH = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
# Letters with case as of Unicode 5.
_CASED = (
    r"[[\p{Lu}\p{Ll}\p{Lt}]&&[^\u{560}-\u{588}\u{10C7}-\u{10FF}\u{1C80}-\u{1C88}\u{2D00}-\u{2D2D}"
    r"\u{A790}-\u{AB68}\u{10570}-\u{105BC}\u{16E40}-\u{16E7F}\u{1D400}-\u{1DF1E}]]"
).replace(r"\u{", r"\x{")
_MARKS = r"[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]"
_EAST_ASIAN = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+"


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


_THREE_DIGITS = (rf"(?:{_CONTRACTIONS})|{_WORDS}|\p{{N}}{{1,3}}|{_REST}",)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"""
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
)
_DEEPSEEK = (r"[\r\n]", rf"\s?{_CASED}+", rf"\s?{_MARKS}+", r"\s+$", _EAST_ASIAN, r"\p{N}+")
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIAN, r"\p{N}")
_QWEN35 = (
    rf"(?:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
)
_TEKKEN = (rf"{_TITLE}|{_CAPITALS}|\p{{N}}|{_REST_SLASH}",)
_GPT4O = (
    rf"{_TITLE}(?:{_CONTRACTIONS})?|{_CAPITALS}(?:{_CONTRACTIONS})?|\p{{N}}{{1,3}}|{_REST_SLASH}",
)
_FALCON = (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]")
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")

_FAMILIES = (
    (PreTokenizer((_GPT2,)), "gpt-2 phi-2 olmo mpt jais mellum trillion granite-docling exaone4"),
    (
        PreTokenizer((r"\p{N}", _GPT2)),
        "smollm starcoder refact command-r codeshell exaone minerva-7b",
    ),
    (
        PreTokenizer(_THREE_DIGITS, whole_words=True, add_bos=True),
        "llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2",
    ),
    (PreTokenizer(_THREE_DIGITS), "dbrx smaug-bpe chatglm-bpe"),
    (PreTokenizer(_THREE_DIGITS, whole_words=True), "glm4"),
    (
        PreTokenizer((rf"(?:{_CONTRACTIONS})|{_WORDS}|\p{{N}}|{_REST}",)),
        "qwen2 deepseek-r1-qwen stablelm2 megrez hunyuan",
    ),
    (PreTokenizer(_QWEN35), "qwen35"),
    (PreTokenizer(_DEEPSEEK), "deepseek-llm"),
    (PreTokenizer(_DEEPSEEK_CODER), "deepseek-coder"),
    (PreTokenizer(_DEEPSEEK3), "deepseek-v3 hunyuan-dense"),
    (PreTokenizer(_TEKKEN, whole_words=True, add_bos=True), "tekken"),
    (PreTokenizer(_GPT4O), "gpt-4o llama4"),
    (PreTokenizer(_FALCON), "falcon"),
    (PreTokenizer(_DEFAULT), "default"),
)
_BY_NAME = {name: kind for kind, names in _FAMILIES for name in names.split()}


def known_pre_tokenizers() -> list[str]:
    """Names that `tokenizer.ggml.pre` may have, sorted."""
    return sorted(_BY_NAME)


def pre_tokenizer(name: str) -> PreTokenizer:
    """Raises `UnsupportedModel` naming the supported ones."""
    found = _BY_NAME.get(name)
    if found is None:
        raise UnsupportedModel(
            f"[Tokenizer.from_gguf] pre-tokenizer {name[:80]!r} is not supported; "
            f"supported: {', '.join(known_pre_tokenizers())}"
        )
    return found
