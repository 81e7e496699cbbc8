#include "quant/k_blocks.h"

#include "pykv/quant.h"
#include "quant/block_codec.h"

namespace pykv::quant {
namespace {

unsigned byte(const std::byte* from, std::size_t i) { return static_cast<unsigned>(from[i]); }

// Adds `bits` of each code, shifted to the left by `to`. They lie in stretches of `stretch`
// bytes; a stretch holds the codes of its bytes' lowest bits, then those of the next, and so on.
void add_bits(const std::byte* from, std::size_t stretch, unsigned bits, unsigned to, KBlock& block) {
  const unsigned mask = (1U << bits) - 1U;
  const std::size_t layers = 8U / bits;
  for (std::size_t i = 0; i < kKBlock; ++i) {
    const std::size_t layer = i / stretch % layers;
    const std::size_t at = i / (stretch * layers) * stretch + i % stretch;
    const unsigned code = (byte(from, at) >> (layer * bits)) & mask;
    block.codes[i] = static_cast<std::uint8_t>(block.codes[i] | code << to);
  }
}

std::int8_t small(unsigned value) { return static_cast<std::int8_t>(value); }

// 16 bytes: a scale in the low half, a minimum in the high half.
void read_nibble_pairs(const std::byte* from, KBlock& block) {
  for (std::size_t g = 0; g < 16; ++g) {
    block.scales[g] = small(byte(from, g) & 15U);
    block.minimums[g] = small(byte(from, g) >> 4);
  }
}

// 8 bytes with the low four bits of 16 scales, 4 bytes with their high two bits; less 32.
void read_signed_scales(const std::byte* from, KBlock& block) {
  for (std::size_t g = 0; g < 16; ++g) {
    const unsigned low = (byte(from, g % 8) >> (g / 8 * 4)) & 15U;
    const unsigned high = (byte(from, 8 + g % 4) >> (g / 4 * 2)) & 3U;
    block.scales[g] = static_cast<std::int8_t>(static_cast<int>(low | high << 4) - 32);
  }
}

// 12 bytes: 8 scales and 8 minimums of six bits. The first four of each are the low six bits
// of bytes 0 … 3 and 4 … 7; of the others, the high two bits are the rest of those bytes, and
// the low four are nibbles of bytes 8 … 11.
void read_scales_and_minimums(const std::byte* from, KBlock& block) {
  for (std::size_t g = 0; g < 4; ++g) {
    const unsigned a = byte(from, g), b = byte(from, g + 4), c = byte(from, g + 8);
    block.scales[g] = small(a & 63U);
    block.minimums[g] = small(b & 63U);
    block.scales[g + 4] = small((c & 15U) | a >> 6 << 4);
    block.minimums[g + 4] = small(c >> 4 | b >> 6 << 4);
  }
}

}  // namespace

KBlock read_k_block(DType type, const std::byte* bytes) {
  KBlock block;
  switch (type) {
    case DType::q2_k:
      read_nibble_pairs(bytes, block);
      add_bits(bytes + 16, 32, 2, 0, block);
      block.d = load16(bytes + 80);
      block.dmin = load16(bytes + 82);
      break;
    case DType::q3_k:
      add_bits(bytes, 32, 1, 2, block);
      add_bits(bytes + 32, 32, 2, 0, block);
      read_signed_scales(bytes + 96, block);
      block.d = load16(bytes + 108);
      break;
    case DType::q4_k:
    case DType::q5_k:
      block.d = load16(bytes);
      block.dmin = load16(bytes + 2);
      read_scales_and_minimums(bytes + 4, block);
      if (type == DType::q5_k) add_bits(bytes + 16, 32, 1, 4, block);
      add_bits(bytes + (type == DType::q5_k ? 48 : 16), 32, 4, 0, block);
      break;
    default:  // q6_k
      add_bits(bytes, 64, 4, 0, block);
      add_bits(bytes + 128, 32, 2, 4, block);
      for (std::size_t g = 0; g < 16; ++g) block.scales[g] = small(byte(bytes, 192 + g));
      block.d = load16(bytes + 208);
      break;
  }
  return block;
}

void decode_k_block(DType type, const KBlock& block, float* out) {
  const KFormat format = k_format(type);
  const std::size_t length = kKBlock / format.groups;
  const float d = f32_from_f16(block.d);
  const float dmin = f32_from_f16(block.dmin);
  for (std::size_t i = 0; i < kKBlock; ++i) {
    const std::size_t group = i / length;
    const float scale = d * static_cast<float>(block.scales[group]);
    const float value = scale * static_cast<float>(block.codes[i] - format.zero);
    out[i] = format.minimum ? value - dmin * static_cast<float>(block.minimums[group]) : value;
  }
}

}  // namespace pykv::quant
