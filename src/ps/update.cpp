// The update functions that are known by name.
#include <charconv>
#include <map>
#include <mutex>

#include <muster/core/error.hpp>
#include <muster/core/update.hpp>
#include <muster/ps/table.hpp>

namespace muster::inline v0::ps {
namespace {

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
    add_update(values, pushed, scale);
  }
};

class sgd_function final : public update_function {
 public:
  sgd_function(double rate, double momentum)
      : rate_(static_cast<float>(rate)), momentum_(static_cast<float>(momentum)) {}
  std::size_t states() const override { return momentum_ == 0 ? 0 : 1; }
  void apply(std::span<float> values, std::span<const float> pushed, std::span<float> state, std::uint64_t,
             float scale) const override {
    sgd_update(values, pushed, state, sgd_step<float>{.learning_rate = rate_ * scale, .momentum = momentum_});
  }

 private:
  float rate_;
  float momentum_;
};

class adagrad_function final : public update_function {
 public:
  explicit adagrad_function(double rate) : rate_(static_cast<float>(rate)) {}
  std::size_t states() const override { return 1; }
  void apply(std::span<float> values, std::span<const float> pushed, std::span<float> state, std::uint64_t,
             float scale) const override {
    adagrad_update(values, pushed, state, adagrad_step<float>{.learning_rate = rate_ * scale});
  }

 private:
  float rate_;
};

class adam_function final : public update_function {
 public:
  explicit adam_function(double rate) : rate_(rate) {}
  std::size_t states() const override { return 2; }
  void apply(std::span<float> values, std::span<const float> pushed, std::span<float> state, std::uint64_t count,
             float scale) const override {
    adam_update(values, pushed, state.first(values.size()), state.subspan(values.size()),
                adam_step<float>{.learning_rate = rate_ * double{scale}, .count = count});
  }

 private:
  double rate_;
};

using maker = std::function<std::shared_ptr<const update_function>(std::string_view)>;

[[noreturn]] void refuse(std::string_view text, const std::string& why, const std::string& suggestion) {
  throw configuration_error("update function '" + std::string(text) + "' cannot be used (" + why + "); " + suggestion);
}

// So many numbers with commas between them.
std::vector<double> numbers_of(std::string_view name, std::string_view text, std::size_t count,
                               const std::string& example) {
  std::vector<double> read;
  for (std::string_view rest = text; !rest.empty();) {
    double number = 0;
    const auto [end, code] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    const bool good = code == std::errc() && (end == rest.data() + rest.size() || *end == ',') && number >= 0;
    if (!good) refuse(name, "'" + std::string(text) + "' is not numbers from 0 on", "write such as " + example);
    read.push_back(number);
    rest.remove_prefix(std::min(rest.size(), static_cast<std::size_t>(end - rest.data()) + 1));
  }
  if (read.size() != count)
    refuse(name, "it takes " + std::to_string(count) + " numbers, not '" + std::string(text) + "'",
           "write such as " + example);
  return read;
}

struct registry {
  std::mutex mutex;
  std::map<std::string, maker> makers = {
      {"assign",
       [](std::string_view text) {
         (void)numbers_of("assign", text, 0, "assign");
         return std::make_shared<assign_function>();
       }},
      {"add",
       [](std::string_view text) {
         (void)numbers_of("add", text, 0, "add");
         return std::make_shared<add_function>();
       }},
      {"sgd",
       [](std::string_view text) {
         return std::make_shared<sgd_function>(numbers_of("sgd", text, 1, "sgd:0.1")[0], 0);
       }},
      {"momentum",
       [](std::string_view text) {
         const auto read = numbers_of("momentum", text, 2, "momentum:0.1,0.9");
         if (read[1] >= 1)
           refuse("momentum", "a momentum of 1 or more never forgets", "write such as momentum:0.1,0.9");
         return std::make_shared<sgd_function>(read[0], read[1]);
       }},
      {"adagrad",
       [](std::string_view text) {
         return std::make_shared<adagrad_function>(numbers_of("adagrad", text, 1, "adagrad:0.1")[0]);
       }},
      {"adam", [](std::string_view text) {
         return std::make_shared<adam_function>(numbers_of("adam", text, 1, "adam:0.001")[0]);
       }}};
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
      refuse(text, "'" + name + "' is not one of " + list,
             meant ? "did you mean " + *meant + "?" : "name one of these");
    }
  }
  return make(colon == std::string_view::npos ? std::string_view{} : text.substr(colon + 1));
}

void register_update(const std::string& name, maker make) {
  auto& all = known();
  const std::lock_guard lock(all.mutex);
  if (!all.makers.emplace(name, std::move(make)).second)
    refuse(name, "an update function of that name is known", "choose another name");
}

}  // namespace muster::inline v0::ps
