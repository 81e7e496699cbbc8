"""Text to token ids and back, and chat messages to prompts, as a GGUF file defines them."""

from pykv.tokenizer.bpe import Tokenizer
from pykv.tokenizer.stream import StreamDecoder
from pykv.tokenizer.template import ChatTemplate

__all__ = ["ChatTemplate", "StreamDecoder", "Tokenizer"]
