// Loaders and batches in Python.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include <muster/data/loader.hpp>

#include "module.hpp"

namespace muster::python {

/// A batch with the owner of its memory, which the arrays of Python share. The owner is null while the memory is the
/// loader's own.
struct batch_memory {
  minibatch view;
  data::record_schema schema;
  std::shared_ptr<const void> owner;
};

/// A batch in Python.
struct batch_object {
  std::shared_ptr<batch_memory> memory;
};

/// A loader in Python, with the rank and the number of ranks for which it reads.
class loader_object final : public process_bound {
 public:
  /// Takes the rank and the world from the launcher's environment.
  explicit loader_object(loader&& own);
  ~loader_object() override;

  [[nodiscard]] loader& get();
  /// Moves the loader out, for a pipeline with one more step.
  [[nodiscard]] loader take();

  /// Returns this part of the batch at the cursor; null at the end of the epoch. Called without the interpreter's lock.
  [[nodiscard]] std::shared_ptr<batch_memory> next(batch_shard part);
  /// Moves to the next batch, to the next epoch, or to a cursor.
  void commit();
  void next_epoch();
  void open(const cursor& target);

  void forget() noexcept override;
  void close() noexcept override;

  batch_shard shard;

 private:
  void leave_batch();

  std::unique_ptr<loader> loader_;
  std::mutex mutex_;
  bool is_taken_ = false;
  std::shared_ptr<batch_memory> current_;  // the batch at `place_`, for `current_shard_`
  cursor place_;
  batch_shard current_shard_;
};

/// A step of a pipeline after batch(): adds itself to a loader.
struct pipeline_step {
  std::string name;
  std::function<loader(loader)> add;
};

void define_batch(nb::module_& module);
void define_steps(nb::module_& module);

}  // namespace muster::python
