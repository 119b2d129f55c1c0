#pragma once

#include <muster/ps/consistency.hpp>

#include <muster/core/inline.hpp>
#include <muster/core/spec.hpp>

namespace muster { inline namespace v0 { namespace ps {

MUSTER_INLINE consistency parse_consistency(std::string_view text) {
  spec_reader spec("consistency", text);
  const auto name = spec.name({"async", "bounded", "bulk"}, "such as bounded:2");
  consistency read;
  if (name == "bounded") {
    read.type = consistency::kind::bounded;
    read.most_clocks_behind = spec.read_whole("number of clocks", spec.value("clocks"));
  }
  if (name == "bulk") read.type = consistency::kind::bulk;
  for (const auto& [key, policy] :
       {std::pair{"drop", consistency::policy::drop}, {"damp", consistency::policy::damp}}) {
    const auto updates = spec.take(key);
    if (!updates) continue;
    if (read.type == consistency::kind::bulk)
      spec.refuse("no push of a bulk-synchronous step is older than another", "write bulk");
    if (read.old_pushes != consistency::policy::keep)
      spec.refuse("old pushes are dropped or damped, not both", "write only drop or damp");
    read.old_pushes = policy;
    read.largest_fresh_age = spec.read_whole(key, *updates);
  }
  spec.finish(name == "bounded" ? "bounded:2,drop=8" : name == "bulk" ? "bulk" : "async,damp=8");
  return read;
}

MUSTER_INLINE std::string to_string(const consistency& model) {
  std::string text = model.type == consistency::kind::asynchronous ? "async"
                     : model.type == consistency::kind::bulk       ? "bulk"
                                                             : "bounded:" + std::to_string(model.most_clocks_behind);
  if (model.old_pushes == consistency::policy::drop) text += ",drop=" + std::to_string(model.largest_fresh_age);
  if (model.old_pushes == consistency::policy::damp) text += ",damp=" + std::to_string(model.largest_fresh_age);
  return text;
}

}}}  // namespace muster::v0::ps
