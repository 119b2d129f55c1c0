#pragma once

#include <muster/train/sync/sync_mode.hpp>

#include <algorithm>
#include <vector>

#include <muster/core/inline.hpp>
#include <muster/core/spec.hpp>
#include <muster/elastic/elastic_settings.hpp>

#include <muster/core/detail/exact_begin.hpp>

namespace muster { inline namespace v0 {
namespace detail {

using kind = sync_mode::kind;
inline const std::vector<std::string> names = {"allreduce", "allreduce-weights", "local-sgd", "gossip",
                                               "ps"};  // by kind

}  // namespace detail

MUSTER_INLINE sync_mode parse_sync_mode(std::string_view text) {
  spec_reader spec("mode", text);
  const auto name = std::ranges::find(detail::names, spec.name(detail::names, "such as local-sgd:8"));
  sync_mode mode{.method = static_cast<detail::kind>(name - detail::names.begin())};
  if (mode.method == detail::kind::local_sgd)
    mode.period = spec.has_value() ? spec.read_whole("number of steps", spec.value("steps"), 1) : 8;
  if (mode.method == detail::kind::gossip && spec.has_value()) {
    std::vector<std::pair<std::string, gossip_graph>> graphs;
    for (const auto graph : {gossip_graph::ring, gossip_graph::torus, gossip_graph::exponential})
      graphs.emplace_back(to_string(graph), graph);
    mode.graph = spec.choose("graph", spec.value("graph"), graphs);
  }
  spec.finish(to_string(mode));
  return mode;
}

MUSTER_INLINE sync_mode sync_mode_of(const context& ctx) {
  return parse_sync_mode(ctx.configuration().value(setting::mode));
}

MUSTER_INLINE std::string to_string(const sync_mode& mode) {
  std::string text = detail::names[static_cast<std::size_t>(mode.method)];
  if (mode.method == detail::kind::local_sgd) text += ":" + std::to_string(mode.period);
  if (mode.method == detail::kind::gossip) text.append(":").append(to_string(mode.graph));
  return text;
}

}}  // namespace muster::v0

#include <muster/core/detail/exact_end.hpp>
