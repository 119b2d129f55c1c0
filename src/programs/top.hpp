// muster-info top: the ranks of a running elastic job, and what they say of themselves.
#pragma once

/// What --here ends with: no rank of this host is in the group; one is, and does not answer.
inline constexpr int top_none_here = 1;
inline constexpr int top_silent = 3;

/// Prints them, again and again on a terminal until the job has ended, else once; returns the exit status. Throws
/// configuration_error when there is no such job. `usage` answers --help.
int watch_job(int argc, char** argv, const char* usage);
