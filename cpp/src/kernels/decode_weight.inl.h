// Panels of weights (panel.h) as float32 tiles.

// Decodes elements [k0, k0 + count) of a panel. Quantized types: multiples of 32.
void decode_weight(const Panel& panel, std::uint32_t k0, std::uint32_t count, float* tile) {
  switch (panel.type) {
    case DType::q8_0:
      return decode_blocks<DType::q8_0>(panel, k0, count, tile);
    case DType::q4_1:
      return decode_blocks<DType::q4_1>(panel, k0, count, tile);
    default:
      return decode_plain(panel, k0, count, tile);
  }
}
