// The update functions that are known by name.
#include <map>
#include <mutex>

#include <muster/core/simd.hpp>
#include <muster/core/spec.hpp>
#include <muster/core/update.hpp>
#include <muster/ps/table.hpp>

namespace muster::inline v0::ps {
namespace {

using made_update = std::shared_ptr<const update_function>;
using maker = std::function<made_update(spec_reader&)>;

// One of core's kernels, for the vectors of the machine.
template <class Step>
class kernel_function final : public update_function {
 public:
  kernel_function(std::size_t states, const Step& step) : states_(states), step_(step) {}
  std::size_t states() const override { return states_; }
  void apply(std::span<float> values, std::span<const float> pushed, std::span<float> state, std::uint64_t count,
             float scale) const override {
    muster::detail::run_vectorised<kernel>(&step_, values, pushed, state, count, scale);
  }

 private:
  struct kernel {
    static void run(const Step* step, std::span<float> values, std::span<const float> pushed, std::span<float> state,
                    std::uint64_t count, float scale) {
      (*step)(values, pushed, state, count, scale);
    }
  };
  std::size_t states_;
  Step step_;
};

template <class Step>
made_update make_kernel(std::size_t states, const Step& step) {
  return std::make_shared<kernel_function<Step>>(states, step);
}

using values_span = std::span<float>;
using pushed_span = std::span<const float>;

made_update make_assign(spec_reader&) {
  return make_kernel(0, [](values_span values, pushed_span pushed, values_span, std::uint64_t, float) {
    assign_update(values, pushed);
  });
}

made_update make_add(spec_reader&) {
  return make_kernel(0, [](values_span values, pushed_span pushed, values_span, std::uint64_t, float scale) {
    add_update(values, pushed, scale);
  });
}

float decay_of(spec_reader& spec) { return static_cast<float>(spec.number_of("decay", 0.0, 0.0, false)); }
float rate_of(spec_reader& spec) { return static_cast<float>(spec.number("rate", 0.0, false)); }

made_update make_sgd(spec_reader& spec) {
  sgd_step<float> step{.learning_rate = rate_of(spec), .nesterov = spec.name() == "nesterov"};
  if (spec.name() != "sgd") {
    step.momentum = static_cast<float>(spec.number("momentum", 0.0, false));
    if (step.momentum >= 1) spec.refuse("a momentum of 1 or more never forgets", "write such as momentum:0.1,0.9");
  }
  step.decay = decay_of(spec);
  return make_kernel(step.momentum == 0 ? 0 : 1,
                     [step](values_span values, pushed_span pushed, values_span state, std::uint64_t, float scale) {
                       auto scaled = step;
                       scaled.learning_rate *= scale;
                       sgd_update(values, pushed, state, scaled);
                     });
}

made_update make_adagrad(spec_reader& spec) {
  const adagrad_step<float> step{.learning_rate = rate_of(spec), .decay = decay_of(spec)};
  return make_kernel(1, [step](values_span values, pushed_span pushed, values_span state, std::uint64_t, float scale) {
    auto scaled = step;
    scaled.learning_rate *= scale;
    adagrad_update(values, pushed, state, scaled);
  });
}

made_update make_adam(spec_reader& spec) {
  const double rate = spec.number("rate", 0.0, false);
  const adam_step<float> step{
      .learning_rate = rate, .decay = spec.number_of("decay", 0.0, 0.0, false), .decoupled = spec.name() == "adamw"};
  return make_kernel(
      2, [step](values_span values, pushed_span pushed, values_span state, std::uint64_t count, float scale) {
        auto scaled = step;
        scaled.learning_rate *= double{scale};
        scaled.count = count;
        adam_update(values, pushed, state.first(values.size()), state.subspan(values.size()), scaled);
      });
}

struct registry {
  std::mutex mutex;
  std::map<std::string, maker> makers = {{"assign", make_assign}, {"add", make_add},      {"sgd", make_sgd},
                                         {"momentum", make_sgd},  {"nesterov", make_sgd}, {"adagrad", make_adagrad},
                                         {"adam", make_adam},     {"adamw", make_adam}};
};

registry& known() {
  static registry all;
  return all;
}

}  // namespace

std::shared_ptr<const update_function> make_update(std::string_view text) {
  spec_reader spec("update function", text);
  auto& all = known();
  maker make;
  {
    const std::lock_guard lock(all.mutex);
    std::vector<std::string> names;
    for (const auto& [each, its] : all.makers) names.push_back(each);
    make = all.makers.at(spec.name(names, "one of these"));
  }
  auto made = make(spec);
  spec.finish("sgd:0.1,decay=1e-4, or the name alone");
  return made;
}

void register_update(const std::string& name, maker make) {
  auto& all = known();
  const std::lock_guard lock(all.mutex);
  if (!all.makers.emplace(name, std::move(make)).second)
    spec_reader("update function", name).refuse("a function of that name is known", "choose another name");
}

}  // namespace muster::inline v0::ps
