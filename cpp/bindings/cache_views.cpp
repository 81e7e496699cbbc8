#include "bindings.h"
#include "cache_bindings.h"

namespace py = pybind11;

namespace pykv::bindings {

namespace {

// What a pool and a whole cache both have.
template <class Stats>
void put_cells(py::dict& out, const Stats& s) {
  out["cells_capacity"] = s.cells_capacity;
  out["cells_computing"] = s.cells_computing;
  out["cells_active"] = s.cells_active;
  out["cells_pinned"] = s.cells_pinned;
  out["cells_resume"] = s.cells_resume;
  out["cells_idle"] = s.cells_idle;
  out["cells_free"] = s.cells_free;
  out["bytes_reserved"] = s.bytes_reserved;
  out["bytes_committed"] = s.bytes_committed;
  out["bytes_per_cell"] = s.bytes_per_cell;
}

}  // namespace

py::dict to_dict(const PoolStats& s) {
  py::dict out;
  out["window"] = s.window.kind == WindowKind::none
                      ? py::object(py::none())
                      : py::object(py::make_tuple(window_kind_name(s.window.kind), s.window.size));
  out["layers"] = s.layers;
  put_cells(out, s);
  return out;
}

py::dict to_dict(const CacheStats& s) {
  py::dict out;
  put_cells(out, s);
  out["bytes_budget"] = s.bytes_budget;
  out["sequences"] = s.sequences;
  out["tree_nodes"] = s.tree_nodes;
  out["tree_tokens"] = s.tree_tokens;
  out["evicted_cells_watermark"] = s.evicted_cells_watermark;
  out["evicted_cells_demand"] = s.evicted_cells_demand;
  out["evicted_cells_request"] = s.evicted_cells_request;
  out["match_query_tokens"] = s.match_query_tokens;
  out["match_hit_tokens"] = s.match_hit_tokens;
  out["match_no_resume_point_tokens"] = s.match_no_resume_point_tokens;
  out["resume_points"] = s.resume_points;
  out["resume_points_made"] = s.resume_points_made;
  out["resume_points_dropped"] = s.resume_points_dropped;
  out["resume_points_used"] = s.resume_points_used;
  out["resume_bytes"] = s.resume_bytes;
  out["resume_bytes_budget"] = s.resume_bytes_budget;
  out["alloc_failures"] = s.alloc_failures;
  out["reclaim_ticks"] = s.reclaim_ticks;
  out["reclaim_runs"] = s.reclaim_runs;
  out["cells_copied"] = s.cells_copied;
  out["compactions"] = s.compactions;
  out["compacted_cells"] = s.compacted_cells;
  out["k_bytes_rewritten"] = s.k_bytes_rewritten;
  out["generation"] = s.generation;
  py::list pools;
  for (const PoolStats& pool : s.pools) pools.append(to_dict(pool));
  out["pools"] = pools;
  py::dict states;
  states["slots"] = s.states.slots;
  states["slots_used"] = s.states.slots_used;
  states["slots_resume"] = s.states.slots_resume;
  states["bytes_per_slot"] = s.states.bytes_per_slot;
  states["bytes_committed"] = s.states.bytes_committed;
  out["states"] = states;
  return out;
}

py::list to_list(const std::vector<PrefixTree::NodeView>& nodes) {
  py::list out;
  for (const PrefixTree::NodeView& node : nodes) {
    py::dict row;
    row["id"] = node.id.value;
    row["parent"] = node.parent.value;
    row["namespace"] = node.name_space.value;
    row["depth"] = node.depth;
    row["length"] = node.length;
    row["ready"] = node.ready;
    row["children"] = node.children;
    row["holders"] = node.holders;
    row["last_used"] = node.last_used;
    out.append(row);
  }
  return out;
}

}  // namespace pykv::bindings
