#include <muster/train/sync_mode.hpp>

#include <vector>

#include <muster/core/error.hpp>
#include <muster/core/number.hpp>

namespace muster::inline v0 {
namespace {

[[noreturn]] void refuse_mode(std::string_view text, const std::string& why, const std::string& suggestion) {
  throw configuration_error("mode '" + std::string(text) + "' cannot be used (" + why + "); " + suggestion);
}

}  // namespace

sync_mode parse_sync_mode(std::string_view text) {
  using kind = sync_mode::kind;
  const auto colon = text.find(':');
  const std::string name(text.substr(0, colon));
  const std::string_view rest = colon == std::string_view::npos ? std::string_view{} : text.substr(colon + 1);
  const bool has_rest = colon != std::string_view::npos;
  if (name == "allreduce" || name == "allreduce-weights") {
    if (has_rest) refuse_mode(text, name + " takes nothing behind it", "drop ':" + std::string(rest) + "'");
    return {.what = name == "allreduce" ? kind::allreduce : kind::allreduce_weights};
  }
  if (name == "ps") {
    if (has_rest)
      refuse_mode(text, "ps takes nothing behind it", "say --servers " + std::string(rest) + " for their number");
    return {.what = kind::parameter_server};
  }
  if (name == "local-sgd") {
    sync_mode mode{.what = kind::local_sgd, .period = 8};
    if (!has_rest) return mode;
    mode.period = parse_number<decltype(mode.period)>(rest).value_or(0);
    if (mode.period == 0)
      refuse_mode(text, "'" + std::string(rest) + "' is no number of steps", "write such as local-sgd:8");
    return mode;
  }
  if (name == "gossip") {
    sync_mode mode{.what = kind::gossip};
    if (!has_rest) return mode;
    std::vector<std::string> graphs;
    for (const auto graph : {gossip_graph::ring, gossip_graph::torus, gossip_graph::exponential}) {
      if (rest == to_string(graph)) {
        mode.graph = graph;
        return mode;
      }
      graphs.emplace_back(to_string(graph));
    }
    const auto meant = closest(rest, graphs);
    refuse_mode(text, "'" + std::string(rest) + "' is not one of ring, torus, exponential",
                meant ? "did you mean gossip:" + *meant + "?" : "write such as gossip:ring");
  }
  const auto meant = closest(name, {"allreduce", "allreduce-weights", "local-sgd", "gossip", "ps"});
  refuse_mode(text, "'" + name + "' is not one of allreduce, allreduce-weights, local-sgd, gossip, ps",
              meant ? "did you mean " + *meant + "?" : "write such as local-sgd:8");
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
