// Writes the files of checkpoints beside the training.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint_file.hpp"

namespace muster { inline namespace v0 { namespace detail {

/// One rank's files of a checkpoint.
struct checkpoint_files {
  checkpoint_head head{};  ///< but for its rank
  int rank = 0;
  std::string own;                    ///< of the rank-local parts, if there are any
  std::string shared{};               ///< at rank 0: of the replicated parts, which makes the checkpoint complete
  std::vector<std::string> others{};  ///< at rank 0: files that have to be there before
  std::function<void()> completed{};  ///< at rank 0: called when it is complete
};

/// Writes one checkpoint after another, each from copies and on a thread of its own.
class checkpoint_writer {
 public:
  /// Waits for this rank's files, and at rank 0 some seconds for those of the others, which may be at their end too.
  ~checkpoint_writer();

  /// What is written: to be changed while nothing is. Their memory is used again.
  std::vector<checkpoint_part> own_parts, shared_parts;

  void start(checkpoint_files files);
  /// Waits until the file of the own parts is written; calls `on_piece` after each piece of it. Throws what went wrong.
  void wait_for_own(const std::function<void()>& on_piece);
  /// All ranks have their own: waits until rank 0 has completed the checkpoint, in the same way.
  void wait_for_all(const std::function<void()>& on_piece);

 private:
  enum class stage { own, shared, idle };

  void write(const std::stop_token& given_up, const checkpoint_files& files);
  void reach(stage next);
  void wait_beyond(stage last, const std::function<void()>& on_piece);

  std::mutex mutex_;
  std::condition_variable_any changed_;
  stage at_ = stage::idle;  // of mutex_, as what follows
  std::size_t pieces_ = 0;
  std::string problem_;
  std::jthread thread_;  // the last member: it ends before the others do
};

}}}  // namespace muster::v0::detail
