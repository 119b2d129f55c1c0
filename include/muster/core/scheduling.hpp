// Requests of a thread to the system's scheduler. Each request is a hint: nothing changes where the system rejects it.
#pragma once

namespace muster { inline namespace v0 { namespace detail {

/// Lowers the priority of the calling thread, for work in the background: the thread gets the processor time that other
/// threads leave. Threads that it starts inherit the priority.
void lower_priority_of_this_thread() noexcept;

/// Shortens the time slices of a thread for which others wait. When the thread is woken it need not wait for the end of
/// another program's time slice, and its share of the processor does not change (Linux 6.12 and later). Performs one
/// system call in the life of a thread.
void shorten_slices_of_this_thread() noexcept;

}}}  // namespace muster::v0::detail
