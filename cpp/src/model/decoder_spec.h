// Floor 4. How the decoder of one architecture differs from others. All of them are blocks of
// a layer that mixes tokens, rotary grouped-query attention or a recurrent one, and a gated
// feed-forward layer, each with a residual connection and RMS norms; decoder.h walks this
// description. Tensors have GGUF's names.
#pragma once

#include <cstdint>

namespace pykv {

// Whether a file has a tensor. What is optional is in all layers or in none.
enum class Need : std::uint8_t { never, optional, always };

// What an RMS norm of queries and keys (attn_q_norm, attn_k_norm) looks at.
enum class HeadNorm : std::uint8_t { none, per_head, whole_row };

// What mixes tokens in the layers without KV heads (attention.head_count_kv lists them).
enum class Recurrent : std::uint8_t {
  none,        // there are no such layers
  short_conv,  // shortconv.*: a causal convolution between two gates
  mamba2,      // ssm_*: a causal convolution, then the scan
};

// What the gate of the feed-forward layer goes through.
enum class Activation : std::uint8_t { silu, gelu, clamped_silu };

// Layers that see a window of tokens only, among layers that see all of them.
struct WindowSpec {
  std::uint32_t period = 0;  // the last of so many layers sees all tokens; 0: there are no windows
  std::uint32_t size = 0;    // where the file does not say it; 0: then there are none
  float rope_base = 0;       // window layers rotate by it, unscaled; 0: as the others do
};

struct DecoderSpec {
  Recurrent recurrent = Recurrent::none;
  bool attention = true;              // some layers have KV heads; else none has
  bool feed_forward = true;           // after the layer that mixes tokens
  bool rope_if_told = false;          // rotates only where rope.scaling.finetuned is true
  bool divides_logits = false;        // by logit_scale, instead of multiplying
  const char* output_norm = nullptr;  // another name that the tensor output_norm may have
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
  // Its activations have elements so large that 8 bits of a block lose the others: what goes into queries,
  // keys and values, and what the gate gives, gets 16 in every row, not only in the first token's.
  bool precise_activations = false;
  // A model of so many layers divides scores by the root of width / heads, not of head_dim.
  std::uint32_t width_scaled_layers = 0;
};

}  // namespace pykv
