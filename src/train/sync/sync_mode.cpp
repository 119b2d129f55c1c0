#include <muster/train/sync/sync_mode.hpp>

#include <vector>

#include <muster/core/spec.hpp>
#include <muster/elastic/settings.hpp>

namespace muster::inline v0 {

sync_mode parse_sync_mode(std::string_view text) {
  using kind = sync_mode::kind;
  spec_reader spec("mode", text);
  const auto name = spec.name({"allreduce", "allreduce-weights", "local-sgd", "gossip", "ps"}, "such as local-sgd:8");
  sync_mode mode{.what = kind::allreduce};
  if (name == "allreduce-weights") mode.what = kind::allreduce_weights;
  if (name == "ps") mode.what = kind::parameter_server;
  if (name == "local-sgd") {
    mode = {.what = kind::local_sgd, .period = 8};
    if (spec.has_value()) mode.period = spec.read_whole("number of steps", spec.value("steps"), 1);
  }
  if (name == "gossip") {
    mode.what = kind::gossip;
    std::vector<std::pair<std::string, gossip_graph>> graphs;
    for (const auto graph : {gossip_graph::ring, gossip_graph::torus, gossip_graph::exponential})
      graphs.emplace_back(to_string(graph), graph);
    if (spec.has_value()) mode.graph = spec.choose("graph", spec.value("graph"), graphs);
  }
  spec.finish(to_string(mode));
  return mode;
}

sync_mode sync_mode_of(const context& of) { return parse_sync_mode(of.configuration().value(setting::mode)); }

std::string to_string(const sync_mode& mode) {
  switch (mode.what) {
    case sync_mode::kind::allreduce:
      break;
    case sync_mode::kind::allreduce_weights:
      return "allreduce-weights";
    case sync_mode::kind::local_sgd:
      return "local-sgd:" + std::to_string(mode.period);
    case sync_mode::kind::gossip:
      return "gossip:" + std::string(to_string(mode.graph));
    case sync_mode::kind::parameter_server:
      return "ps";
  }
  return "allreduce";
}

}  // namespace muster::inline v0
