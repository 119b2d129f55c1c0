// A copyable function object of any type with a given signature: std::function without the header <functional>, which
// takes a tenth of a second to compile.
#pragma once

#include <concepts>
#include <memory>
#include <type_traits>
#include <utility>

namespace muster { inline namespace v0 { namespace detail {

template <class>
class function;

/// Copies share one function object. Not thread safe beyond what the function object is.
template <class Result, class... Arguments>
class function<Result(Arguments...)> {
 public:
  function() = default;
  /// Converts from any function object. A null pointer, or an empty std::function, gives an empty function.
  template <class Callable>
  requires(!std::same_as<std::remove_cvref_t<Callable>, function> &&
           std::is_invocable_r_v<Result, std::decay_t<Callable>&, Arguments...>)
      function(Callable&& callable) {  // NOLINT: meant to convert
    using stored = std::decay_t<Callable>;
    if constexpr (!std::is_function_v<std::remove_reference_t<Callable>> && requires { callable == nullptr; }) {
      if (callable == nullptr) return;
    }
    stored_ = std::make_shared<stored>(std::forward<Callable>(callable));
    call_ = [](void* object, Arguments... arguments) -> Result {
      return static_cast<Result>((*static_cast<stored*>(object))(std::forward<Arguments>(arguments)...));
    };
  }

  [[nodiscard]] explicit operator bool() const noexcept { return call_ != nullptr; }
  /// Requires a function that is not empty.
  Result operator()(Arguments... arguments) const {
    return call_(stored_.get(), std::forward<Arguments>(arguments)...);
  }

 private:
  std::shared_ptr<void> stored_;
  Result (*call_)(void*, Arguments...) = nullptr;
};

}}}  // namespace muster::v0::detail
