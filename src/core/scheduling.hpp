// What a thread asks of the system's scheduler. Each is a hint: where it is refused or unknown nothing changes.
#pragma once

namespace muster { inline namespace v0 { namespace detail {

/// For work in the background: the calling thread gets what others leave of the processors. Threads that it starts
/// inherit that.
void lower_priority_of_this_thread() noexcept;

/// For a thread that others wait for: when it is woken it need not wait for the end of another program's time slice,
/// and its share of the processor stays what it is (Linux 6.12 and later). One system call in the life of a thread.
void shorten_slices_of_this_thread() noexcept;

}}}  // namespace muster::v0::detail
