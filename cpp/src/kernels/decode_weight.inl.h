// Panels of weights (panel.h) as float32 tiles.

// Decodes elements [k0, k0 + count) of a panel; k0, and count except at the end, are
// multiples of 32.
void decode_weight(const Panel& panel, std::uint32_t k0, std::uint32_t count, float* tile) {
  switch (panel.type) {
    case DType::q2_k:
      return decode_k<DType::q2_k>(panel, k0, count, tile);
    case DType::q3_k:
      return decode_k<DType::q3_k>(panel, k0, count, tile);
    case DType::q4_k:
      return decode_k<DType::q4_k>(panel, k0, count, tile);
    case DType::q5_k:
      return decode_k<DType::q5_k>(panel, k0, count, tile);
    case DType::q6_k:
      return decode_k<DType::q6_k>(panel, k0, count, tile);
    case DType::bf16:
      return decode_panel(panel, k0, count + count % 2, tile);
    default:
      return decode_panel(panel, k0, count, tile);
  }
}
