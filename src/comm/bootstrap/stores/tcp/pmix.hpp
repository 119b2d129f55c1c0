// What the launcher's PMIx carries between the ranks: one text, from rank 0 to all.
#pragma once

#include <string>

#include <muster/core/clock.hpp>

namespace muster::inline v0::detail {

/// This process as PMIx knows it (https://pmix.org); from libpmix, which is loaded when it is needed and not before.
/// Works beside an MPI of the same process that uses it too, before, after and during.
class pmix_session {
 public:
  /// The one of this process; null, and why, when there is none to be had. One thread at a time.
  [[nodiscard]] static pmix_session* open(std::string& why_not);

  pmix_session(const pmix_session&) = delete;
  pmix_session& operator=(const pmix_session&) = delete;
  virtual ~pmix_session() = default;

  [[nodiscard]] virtual int rank() const noexcept = 0;
  /// Collective over all ranks that were started together: returns rank 0's text everywhere. Throws timeout_error.
  [[nodiscard]] virtual std::string share(const std::string& text, clock::time_point until) = 0;

 protected:
  pmix_session() = default;
};

}  // namespace muster::inline v0::detail
