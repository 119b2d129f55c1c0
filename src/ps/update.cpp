// The update functions that are known by name.
#include <map>
#include <mutex>

#include <muster/core/simd.hpp>
#include <muster/core/spec.hpp>
#include <muster/core/update.hpp>
#include <muster/ps/table.hpp>

namespace muster::inline v0::ps {
namespace {

// Core's kernels, for the vectors of the machine.
struct add_kernel {
  static void run(std::span<float> values, std::span<const float> pushed, float scale) {
    add_update(values, pushed, scale);
  }
};
struct sgd_kernel {
  static void run(std::span<float> values, std::span<const float> pushed, std::span<float> state,
                  const sgd_step<float>& step) {
    sgd_update(values, pushed, state, step);
  }
};
struct adagrad_kernel {
  static void run(std::span<float> values, std::span<const float> pushed, std::span<float> state,
                  const adagrad_step<float>& step) {
    adagrad_update(values, pushed, state, step);
  }
};
struct adam_kernel {
  static void run(std::span<float> values, std::span<const float> pushed, std::span<float> means,
                  std::span<float> squares, const adam_step<float>& step) {
    adam_update(values, pushed, means, squares, step);
  }
};

class assign_function final : public update_function {
 public:
  void apply(std::span<float> values, std::span<const float> pushed, std::span<float>, std::uint64_t,
             float) const override {
    assign_update(values, pushed);
  }
};

class add_function final : public update_function {
 public:
  void apply(std::span<float> values, std::span<const float> pushed, std::span<float>, std::uint64_t,
             float scale) const override {
    muster::detail::run_vectorised<add_kernel>(values, pushed, scale);
  }
};

class sgd_function final : public update_function {
 public:
  explicit sgd_function(const sgd_step<float>& step) : step_(step) {}
  std::size_t states() const override { return step_.momentum == 0 ? 0 : 1; }
  void apply(std::span<float> values, std::span<const float> pushed, std::span<float> state, std::uint64_t,
             float scale) const override {
    auto step = step_;
    step.learning_rate *= scale;
    muster::detail::run_vectorised<sgd_kernel>(values, pushed, state, step);
  }

 private:
  sgd_step<float> step_;
};

class adagrad_function final : public update_function {
 public:
  explicit adagrad_function(const adagrad_step<float>& step) : step_(step) {}
  std::size_t states() const override { return 1; }
  void apply(std::span<float> values, std::span<const float> pushed, std::span<float> state, std::uint64_t,
             float scale) const override {
    auto step = step_;
    step.learning_rate *= scale;
    muster::detail::run_vectorised<adagrad_kernel>(values, pushed, state, step);
  }

 private:
  adagrad_step<float> step_;
};

class adam_function final : public update_function {
 public:
  explicit adam_function(const adam_step<float>& step) : step_(step) {}
  std::size_t states() const override { return 2; }
  void apply(std::span<float> values, std::span<const float> pushed, std::span<float> state, std::uint64_t count,
             float scale) const override {
    auto step = step_;
    step.learning_rate *= double{scale};
    step.count = count;
    muster::detail::run_vectorised<adam_kernel>(values, pushed, state.first(values.size()),
                                                state.subspan(values.size()), step);
  }

 private:
  adam_step<float> step_;
};

using made_update = std::shared_ptr<const update_function>;
using maker = std::function<made_update(spec_reader&)>;

float decay_of(spec_reader& spec) { return static_cast<float>(spec.number_of("decay", 0.0, 0.0, false)); }
float rate_of(spec_reader& spec) { return static_cast<float>(spec.number("rate", 0.0, false)); }

made_update make_sgd(spec_reader& spec) {
  sgd_step<float> step{.learning_rate = rate_of(spec), .nesterov = spec.name() == "nesterov"};
  if (spec.name() != "sgd") {
    step.momentum = static_cast<float>(spec.number("momentum", 0.0, false));
    if (step.momentum >= 1) spec.refuse("a momentum of 1 or more never forgets", "write such as momentum:0.1,0.9");
  }
  step.decay = decay_of(spec);
  return std::make_shared<sgd_function>(step);
}

made_update make_adagrad(spec_reader& spec) {
  return std::make_shared<adagrad_function>(
      adagrad_step<float>{.learning_rate = rate_of(spec), .decay = decay_of(spec)});
}

made_update make_adam(spec_reader& spec) {
  const double rate = spec.number("rate", 0.0, false);
  return std::make_shared<adam_function>(adam_step<float>{
      .learning_rate = rate, .decay = spec.number_of("decay", 0.0, 0.0, false), .decoupled = spec.name() == "adamw"});
}

struct registry {
  std::mutex mutex;
  std::map<std::string, maker> makers = {{"assign", [](spec_reader&) { return std::make_shared<assign_function>(); }},
                                         {"add", [](spec_reader&) { return std::make_shared<add_function>(); }},
                                         {"sgd", make_sgd},
                                         {"momentum", make_sgd},
                                         {"nesterov", make_sgd},
                                         {"adagrad", make_adagrad},
                                         {"adam", make_adam},
                                         {"adamw", make_adam}};
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
