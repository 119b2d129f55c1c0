// Records that cannot be used: who finds them, who counts them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <muster/core/error.hpp>
#include <muster/data/permutation.hpp>  // sample_id

namespace muster::inline v0 {

/// A record that cannot be used, as the source tells it: damaged on disk, or a line that says no sample. It keeps its
/// id and its place in the order of the epoch, so that leaving it out pulls no other record forward.
struct bad_record {
  sample_id id = 0;
  data_location where;  ///< its file with its line, or its first byte
  std::string problem;  ///< what is wrong with it, without the place: problem (why) suggestion
};

}  // namespace muster::inline v0
