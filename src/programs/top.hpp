// muster-info top: the ranks of a running elastic job, and the metrics that they report.
#pragma once

/// Exit statuses of --here, if not 0: no rank on this host is in the group; a rank on this host does not answer.
inline constexpr int top_none_here = 1;
inline constexpr int top_silent = 3;

/// Prints the ranks of a job: repeatedly on a terminal until the job has ended, otherwise once. With --here prints the
/// ranks on this host, once. Returns the exit status. Throws configuration_error when there is no such job. `usage` is
/// the text for --help.
int watch_job(int argc, char** argv, const char* usage);
