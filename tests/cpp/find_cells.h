// CellMap::find with its answer as values.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "pykv/cell_map.h"

// Result i belongs to request i; nullopt: does not fit.
inline std::optional<std::vector<std::vector<pykv::CellSpan>>> find_cells(
    const pykv::CellMap& map, std::span<const pykv::CellRequest> requests) {
  pykv::FoundCells found;
  if (!map.find(requests, found)) return std::nullopt;
  std::vector<std::vector<pykv::CellSpan>> spans;
  for (std::size_t i = 0; i < requests.size(); ++i)
    spans.emplace_back(found.of(i).begin(), found.of(i).end());
  return spans;
}
