// A collective of the backend before it starts.
#pragma once

#include <functional>

#include "backend.hpp"
#include "tensors.hpp"

namespace muster::torch_backend {

using c10d::OpType;
using muster::collective;

/// A collective as it is handed to muster, and what follows it.
struct backend::collective_request {
  collective kind;
  OpType op_type;
  const char* title;
  muster::detail::typed_elements in{};
  muster::detail::typed_elements out{};
  reduction_choice reduction{};
  int root = 0;
  std::chrono::milliseconds timeout;
  bool is_async = true;
  tensors inputs{};                ///< kept until the call is done
  tensors result{};                ///< the tensors of the future
  std::function<void()> finish{};  ///< called once after success
};

}  // namespace muster::torch_backend
