#include <muster/train/ps_parameters.hpp>

#include <algorithm>
#include <sstream>
#include <utility>

#include <muster/core/events.hpp>
#include <muster/core/spec.hpp>

namespace muster::inline v0 {

std::string served_update(std::string_view optimizer) {
  spec_reader spec("optimizer", optimizer);
  const auto name = spec.name({"sgd", "momentum", "nesterov", "adam", "adamw", "adagrad"},
                              "one that a server can do, such as momentum:0.9,decay=1e-4 or adam");
  std::ostringstream text;
  text.precision(17);
  text << name << ":1";
  if (name == "momentum" || name == "nesterov") text << ',' << spec.number("momentum", 0.0, true);
  if (const double decay = spec.number_of("decay", 0.0, 0.0, false); decay != 0) text << ",decay=" << decay;
  spec.finish(name == "momentum" || name == "nesterov" ? name + ":0.9,decay=1e-4" : name + ",decay=1e-4");
  (void)ps::make_update(text.str());
  return text.str();
}

ps::table_spec ps_parameters::table(const arena& of, std::string_view optimizer, std::string name) {
  return {.name = std::move(name), .size = of.parameters().size(), .update = served_update(optimizer)};
}

ps_parameters::ps_parameters(arena& of, ps::job& job, std::uint32_t table)
    : arena_(of), tables_(job.tables()), layout_(job.layout()), table_(table), written_(of.shapes().size(), false) {}

void ps_parameters::assign() { tables_.assign(table_, std::as_const(arena_).parameters()); }

void ps_parameters::pull() {
  const auto parameters = arena_.parameters();
  const scoped_event waits(activity::aggregate, "pull", 0);
  const scoped_event measured(activity::communication, "pull", parameters.size_bytes());
  tables_.pull(table_, parameters);
}

void ps_parameters::begin(double learning_rate) {
  {
    const scoped_event measured(activity::communication, "push", 0);  // its bytes are told when they are handed over
    for (auto& push : under_way_) push.wait();
  }
  under_way_.clear();
  arena_.clear_gradients();
  rate_ = static_cast<float>(learning_rate);
  std::fill(written_.begin(), written_.end(), false);
  next_ = pushed_ = 0;
}

// Tensors lie in the order in which a backward pass writes their gradients, the last one first.
void ps_parameters::ready(std::size_t tensor) {
  written_.at(tensor) = true;
  const std::size_t count = written_.size();
  while (next_ < count && written_[count - 1 - next_]) ++next_;
  if (next_ == 0) return;
  const auto last = arena_.extents()[count - next_];
  const std::size_t end = last.first + last.count;
  if (end >= arena_.parameters().size()) return push_up_to(end);
  push_up_to(layout_.range(layout_.range_of_element(table_, end)).begin);  // whole ranges
}

void ps_parameters::push_up_to(std::size_t end) {
  if (end <= pushed_) return;
  const auto gradients = std::as_const(arena_).gradients();
  under_way_.push_back(
      tables_.push_async(table_, gradients.subspan(pushed_, end - pushed_), {.offset = pushed_, .scale = rate_}));
  pushed_ = end;
}

void ps_parameters::end() {
  push_up_to(arena_.parameters().size());
  tables_.next_clock();
}

}  // namespace muster::inline v0
