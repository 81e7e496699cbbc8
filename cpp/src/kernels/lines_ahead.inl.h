// With few queries attention waits for memory. Asking for all lines of a tile at once would hold up
// the next loads; so they are asked for a few at a time, long before: V while K is multiplied, and K of
// what comes next while V is.

// Tiles of which lines are asked for in order, so many at each step.
class LinesAhead {
 public:
  LinesAhead(std::span<const std::byte* const> tiles, std::size_t bytes) : tiles_(tiles), bytes_(bytes) {}

  PYKV_INLINE void ask(std::size_t lines) {
    for (; lines > 0 && !tiles_.empty(); --lines) {
      __builtin_prefetch(tiles_.front() + at_, 0, 2);
      at_ += 64;
      if (at_ < bytes_) continue;
      at_ = 0;
      tiles_ = tiles_.subspan(1);
    }
  }

 private:
  std::span<const std::byte* const> tiles_;
  std::size_t bytes_;
  std::size_t at_ = 0;
};

// The tiles of V of a task, where pieces are long enough to need most of them.
class VTiles {
 public:
  explicit VTiles(const PartitionTask& task) {
    for (const KvPiece& piece : task.pieces)
      if (count_ < kMost && piece.length >= kBlockCells / 2) tiles_[count_++] = piece.v_tile;
  }
  std::span<const std::byte* const> all() const { return {tiles_, count_}; }

 private:
  static constexpr std::size_t kMost = kPartitionPositions / kBlockCells;
  const std::byte* tiles_[kMost];
  std::size_t count_ = 0;
};
