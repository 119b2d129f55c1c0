// The model of the README's program, with a record of the training samples: each rank appends "EPOCH POSITION ID..." to
// a file of its own when a step has committed. POSITION is the position of the step's global batch.
#pragma once

#include <muster/muster.hpp>

#include <fcntl.h>
#include <unistd.h>
#include <string>
#include <utility>

#define mlp plain_mlp
#include "../../../examples/mnist/mlp.hpp"
#undef mlp

inline thread_local std::string step_record;  // record of the current attempt at this rank

class mlp : public plain_mlp {
 public:
  using plain_mlp::plain_mlp;
  void forward_backward(const muster::minibatch& batch, muster::backward_pass& pass) {
    step_record = std::to_string(batch.epoch) + " " + std::to_string(batch.position);
    for (const auto id : batch.samples) step_record += " " + std::to_string(id);
    plain_mlp::forward_backward(batch, pass);
  }
};

namespace muster {

class recording_sgd : public sgd {
 public:
  using sgd::sgd;
  void describe(state_parts& parts) {
    sgd::describe(parts);
    parts.hook(
        [] {
          static thread_local const int file = ::open(("committed-" + std::to_string(::gettid())).c_str(),
                                                      O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
          const std::string line = std::exchange(step_record, {}) + "\n";
          if (::write(file, line.data(), line.size()) != static_cast<ssize_t>(line.size())) std::abort();
        },
        [] { step_record.clear(); });
  }
};

}  // namespace muster

#define sgd recording_sgd  // in the program that includes this file
