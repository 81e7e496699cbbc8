// Floor 4. How the decoder of one architecture differs from others. All of them are blocks of
// rotary grouped-query attention and a gated feed-forward layer, each with a residual
// connection and RMS norms; decoder.h walks this description. Tensors have GGUF's names.
#pragma once

#include <cstdint>

namespace pykv {

// Whether a file has a tensor. What is optional is in all layers or in none.
enum class Need : std::uint8_t { never, optional, always };

// What an RMS norm of queries and keys (attn_q_norm, attn_k_norm) looks at.
enum class HeadNorm : std::uint8_t { none, per_head, whole_row };

// What the gate of the feed-forward layer goes through.
enum class Activation : std::uint8_t { silu, gelu, clamped_silu };

// Layers that see a window of tokens only, among layers that see all of them.
struct WindowSpec {
  std::uint32_t period = 0;  // the last of so many layers sees all tokens; 0: there are no windows
  std::uint32_t size = 0;    // where the file does not say it; 0: then there are none
  float rope_base = 0;       // window layers rotate by it, unscaled; 0: as the others do
};

struct DecoderSpec {
  bool rope_interleaved = false;      // rotates pairs (2i, 2i + 1); else (i, i + dims / 2)
  bool norm_before = true;            // attn_norm, ffn_norm: of a sublayer's input
  bool norm_after = false;            // post_attention_norm, post_ffw_norm: of its output
  const char* ffn_norm = "ffn_norm";  // the tensor's name
  HeadNorm qk_norm = HeadNorm::none;
  Need qkv_bias = Need::never;     // attn_q.bias, attn_k.bias, attn_v.bias
  Need output_bias = Need::never;  // attn_output.bias
  Need ffn_bias = Need::never;     // ffn_gate.bias, ffn_up.bias, ffn_down.bias
  bool gate_in_up = false;         // ffn_up holds the gate's rows, then its own
  bool experts = false;            // ffn_gate_inp chooses among ffn_*_exps; biases as ffn_bias
  bool sinks = false;              // attn_sinks
  bool scaled_embedding = false;   // by the root of the width
  Activation activation = Activation::silu;
  WindowSpec window = {};
  float attention_softcap = 0;  // where the file does not say it; 0: none
  float logit_softcap = 0;      // likewise
  // A model of so many layers divides scores by the root of width / heads, not of head_dim.
  std::uint32_t width_scaled_layers = 0;
};

}  // namespace pykv
