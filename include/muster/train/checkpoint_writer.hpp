// Writes the files of checkpoints in the background of the training.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <muster/train/checkpoint_file.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// A rank's files of a checkpoint.
struct checkpoint_files {
  checkpoint_head head{};  ///< without the rank
  int rank = 0;
  std::string own;       ///< path of the rank-local parts' file; no such parts: not written
  std::string shared{};  ///< at rank 0: path of the replicated parts' file, which completes the checkpoint
  std::vector<std::string> other_files{};  ///< at rank 0: files that must exist before
  std::function<void()> completed{};       ///< at rank 0: called when the checkpoint is complete
};

/// A writer of checkpoints, one at a time, from copies and on its own thread.
///
/// A save has these stages. In `own` this rank writes its file. In `shared` rank 0 waits for the other ranks' files,
/// writes the replicated parts, and renames that file, which completes the checkpoint. In `idle` no write is in
/// progress. `start` sets `own`, and only the thread advances the stage.
class checkpoint_writer {
 public:
  /// Waits for this rank's files, and at rank 0 at most some seconds for the other ranks' files, since these ranks may
  /// be ending too.
  ~checkpoint_writer();

  /// The parts to write. The caller may change them only while no write is in progress. Their memory is reused.
  std::vector<checkpoint_part> own_parts, shared_parts;

  void start(checkpoint_files files);
  /// Waits until the file of the rank-local parts is written. Calls `on_piece` after each piece of the file. Throws the
  /// error of the write.
  void wait_for_own(const std::function<void()>& on_piece);
  /// Waits at rank 0 until the checkpoint is complete, and at another rank until that rank's file is written, with
  /// `on_piece` and errors as above. Call it when every rank has written its file: rank 0 then waits for no file of
  /// another rank, and reports a missing file as an error.
  void wait_for_all(const std::function<void()>& on_piece);

 private:
  enum class stage { own, shared, idle };  // in their order

  void write(const std::stop_token& stop, const checkpoint_files& files);
  void reach(stage next);
  void wait_beyond(stage last, const std::function<void()>& on_piece);

  std::mutex mutex_;
  std::condition_variable_any changed_;
  stage stage_ = stage::idle;  // guarded by mutex_
  std::size_t pieces_ = 0;     // guarded by mutex_
  std::string problem_;        // guarded by mutex_
  std::jthread thread_;        // the last member, so that the thread ends before the other members are destroyed
};

}}}  // namespace muster::v0::detail
