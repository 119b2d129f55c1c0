// The update functions that are known by name.
#include <charconv>
#include <map>
#include <mutex>

#include <muster/core/error.hpp>
#include <muster/core/simd.hpp>
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

using maker = std::function<std::shared_ptr<const update_function>(std::string_view)>;

[[noreturn]] void refuse_update(std::string_view text, const std::string& why, const std::string& suggestion) {
  throw configuration_error("update function '" + std::string(text) + "' cannot be used (" + why + "); " + suggestion);
}

struct numbers {
  std::vector<double> given;
  double decay = 0;
  [[nodiscard]] float at(std::size_t i) const { return static_cast<float>(given[i]); }
};

// So many numbers with commas between them, and perhaps a decay.
numbers numbers_of(std::string_view name, std::string_view text, std::size_t count, const std::string& example) {
  constexpr std::string_view decay = "decay=";
  numbers read;
  for (std::string_view rest = text; !rest.empty();) {
    const bool decays = rest.starts_with(decay);
    if (decays) rest.remove_prefix(decay.size());
    double number = 0;
    const auto [end, code] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    const bool last = end == rest.data() + rest.size();
    const bool good = code == std::errc() && (last || (*end == ',' && !decays)) && number >= 0;
    if (!good) refuse_update(name, "'" + std::string(text) + "' is not numbers from 0 on", "write such as " + example);
    if (decays)
      read.decay = number;
    else
      read.given.push_back(number);
    rest.remove_prefix(std::min(rest.size(), static_cast<std::size_t>(end - rest.data()) + 1));
  }
  if (read.given.size() != count)
    refuse_update(name, "it takes " + std::to_string(count) + " numbers, not '" + std::string(text) + "'",
                  "write such as " + example);
  return read;
}

std::shared_ptr<const update_function> without_numbers(const std::string& name, std::string_view text,
                                                       std::shared_ptr<const update_function> made) {
  if (!text.empty())
    refuse_update(name, "it takes nothing behind it, not '" + std::string(text) + "'", "write " + name);
  return made;
}

std::shared_ptr<const update_function> with_velocity(const std::string& name, std::string_view text) {
  const auto read = numbers_of(name, text, 2, name + ":0.1,0.9");
  if (read.given[1] >= 1)
    refuse_update(name, "a momentum of 1 or more never forgets", "write such as " + name + ":0.1,0.9");
  return std::make_shared<sgd_function>(sgd_step<float>{.learning_rate = read.at(0),
                                                        .momentum = read.at(1),
                                                        .decay = static_cast<float>(read.decay),
                                                        .nesterov = name == "nesterov"});
}

std::shared_ptr<const update_function> with_squares(const std::string& name, std::string_view text) {
  const auto read = numbers_of(name, text, 1, name + ":0.001");
  return std::make_shared<adam_function>(
      adam_step<float>{.learning_rate = read.given[0], .decay = read.decay, .decoupled = name == "adamw"});
}

struct registry {
  std::mutex mutex;
  std::map<std::string, maker> makers = {
      {"assign",
       [](std::string_view text) { return without_numbers("assign", text, std::make_shared<assign_function>()); }},
      {"add", [](std::string_view text) { return without_numbers("add", text, std::make_shared<add_function>()); }},
      {"sgd",
       [](std::string_view text) {
         const auto read = numbers_of("sgd", text, 1, "sgd:0.1");
         return std::make_shared<sgd_function>(
             sgd_step<float>{.learning_rate = read.at(0), .decay = static_cast<float>(read.decay)});
       }},
      {"momentum", [](std::string_view text) { return with_velocity("momentum", text); }},
      {"nesterov", [](std::string_view text) { return with_velocity("nesterov", text); }},
      {"adagrad",
       [](std::string_view text) {
         const auto read = numbers_of("adagrad", text, 1, "adagrad:0.1");
         return std::make_shared<adagrad_function>(
             adagrad_step<float>{.learning_rate = read.at(0), .decay = static_cast<float>(read.decay)});
       }},
      {"adam", [](std::string_view text) { return with_squares("adam", text); }},
      {"adamw", [](std::string_view text) { return with_squares("adamw", text); }}};
};

registry& known() {
  static registry all;
  return all;
}

}  // namespace

std::shared_ptr<const update_function> make_update(std::string_view text) {
  const auto colon = text.find(':');
  const std::string name(text.substr(0, colon));
  auto& all = known();
  maker make;
  {
    const std::lock_guard lock(all.mutex);
    if (const auto found = all.makers.find(name); found != all.makers.end()) make = found->second;
    if (!make) {
      std::vector<std::string> names;
      std::string list;
      for (const auto& [each, its] : all.makers) {
        names.push_back(each);
        list += (list.empty() ? "" : ", ") + each;
      }
      const auto meant = closest(name, names);
      refuse_update(text, "'" + name + "' is not one of " + list,
                    meant ? "did you mean " + *meant + "?" : "name one of these");
    }
  }
  return make(colon == std::string_view::npos ? std::string_view{} : text.substr(colon + 1));
}

void register_update(const std::string& name, maker make) {
  auto& all = known();
  const std::lock_guard lock(all.mutex);
  if (!all.makers.emplace(name, std::move(make)).second)
    refuse_update(name, "an update function of that name is known", "choose another name");
}

}  // namespace muster::inline v0::ps
