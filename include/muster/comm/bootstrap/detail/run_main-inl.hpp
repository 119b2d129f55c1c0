// The main function of a program: a failure is printed as one line by a single rank, and one exit status at every rank.
#pragma once

#include <muster/comm/context.hpp>

#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <muster/comm/bootstrap/rank_threads.hpp>
#include <muster/comm/bootstrap/transport_choice.hpp>
#include <muster/comm/comm_settings.hpp>
#include <muster/core/atomic_file.hpp>
#include <muster/core/descriptor.hpp>
#include <muster/core/env.hpp>
#include <muster/core/error.hpp>
#include <muster/core/inline.hpp>
#include <muster/core/text.hpp>

namespace muster { inline namespace v0 { namespace detail {
inline std::string program_name(const char* program) {
  std::string_view name(program == nullptr ? "muster" : program);
  name.remove_prefix(name.find_last_of('/') + 1);  // npos + 1 is 0
  return on_one_line(name);
}

inline void print_error(const char* program, const std::string& text) {
  const std::string line = program_name(program) + ": error: " + text + "\n";
  std::fwrite(line.data(), 1, line.size(), stderr);
}

// Prints the answer to a question of the command line. Returns the exit status.
inline int print_answer(const char* program, const std::string& text) noexcept {
  try {
    std::fputs(text.c_str(), stdout);
    flush_standard_output();
    return 0;
  } catch (...) {
    print_error(program, describe(std::current_exception()));
    return exit_status_of(std::current_exception());
  }
}

inline std::string usage_of(const char* program, const main_options& options) {
  return options.help ? options.help() : "usage: " + program_name(program) + " [flags of muster]\n";
}

// Returns the value of a flag as far as it can be determined when another part of the command line is wrong.
inline std::optional<std::string> value_of_flag(int argc, char** argv, std::string_view flag) {
  std::optional<std::string> value;  // as the settings read a flag: the last one counts, and none behind "--"
  for (int i = 1; i < argc && std::string_view(argv[i]) != "--"; ++i) {
    const std::string_view word(argv[i]);
    if (word.starts_with(flag) && word.substr(flag.size()).starts_with('=')) value = argv[i] + flag.size() + 1;
    if (word == flag && i + 1 < argc) value = argv[++i];
  }
  return value;
}

// The settings by which ranks meet when the command line is wrong. Ranks without an error connect by these settings.
struct meeting_settings {
  meeting_settings(int argc, char** argv)
      : transport(value_of_flag(argc, argv, "--transport").value_or(environment("MUSTER_TRANSPORT").value_or("auto"))),
        timeout("--timeout=" + value_of_flag(argc, argv, "--timeout").value_or("")) {}

  [[nodiscard]] settings others() const {
    std::string word = timeout;
    char* words[] = {nullptr, word.data(), nullptr};
    int count = 2;
    settings chosen(count, words);
    try {
      (void)chosen.number(setting::timeout);
      return chosen;
    } catch (const configuration_error&) {
      return {};
    }
  }

  std::string transport;
  std::string timeout;
};

// Ends a program that has no context. All ranks detect a bad flag or variable before they are connected. They connect
// only to agree that one rank prints the error, instead of every rank.
inline context::outcome settle_without_context(std::exception_ptr failure, const meeting_settings& meeting,
                                               const main_options& options, bool connected) noexcept {
  // Any other error occurred while connecting: this rank would only wait for the same ranks again.
  const bool is_early = exit_status_of(failure) == static_cast<int>(error_kind::configuration);
  if (!is_early) return {exit_status_of(failure), true, describe(failure)};
  try {
    // The constructor of the context has notified the other ranks.
    if (connected) return {exit_status_of(failure), detect_launch().rank == 0, describe(failure)};
    if (options.connect) {
      group world(options.connect(), {});
      return agree_on_exit_status_of_world(world, failure);
    }
    const launch_env launch = detect_launch();
    const settings others = meeting.others();
    transport_choice chosen;
    try {
      chosen = choose_transport(others, launch, meeting.transport);
    } catch (const configuration_error&) {  // the transport itself may be wrong
      chosen = choose_transport(others, launch, "auto");
    }
    const bool elastic = others.value(setting::elastic) == "on";  // elastic ranks end without the others
    if (launch.size > 1 && !elastic) {
      group world(connect_processes(chosen, others, launch), {});
      return agree_on_exit_status_of_world(world, failure);
    }
  } catch (...) {  // each rank then reports for itself
  }
  return {exit_status_of(failure), true, describe(failure)};
}

MUSTER_INLINE int run_main(int& argc, char** argv, const main_options& options, bool has_own_arguments,
                           const function<int(context&)>& body) noexcept {
  prepare_process();
  const char* const program = argc > 0 ? argv[0] : nullptr;
  const meeting_settings meeting(argc, argv);
  bool connected = false;  // true after the program has connected its ranks
  try {
    settings chosen(argc, argv);
    if (const auto question = chosen.requested(); question != settings::request::none) {
      return detect_launch().rank == 0 ? print_answer(program, output_for(question, usage_of(program, options))) : 0;
    }
    if (!has_own_arguments && argc > 1) throw unknown_argument(argv[1]);
    std::optional<context> job;
    if (options.connect) {
      auto transport_of_program = options.connect();
      connected = true;
      job.emplace(std::move(transport_of_program), std::move(chosen));
    } else {
      job.emplace(std::move(chosen));
    }
    std::exception_ptr failure;
    int status = 0;
    try {
      status = body(*job);
      flush_standard_output();  // also written text that is lost is a failure
    } catch (...) {
      failure = std::current_exception();
    }
    const auto agreed = job->agree_on_exit_status(failure);
    if (!agreed.text.empty() && agreed.prints_failure) print_error(program, agreed.text);
    return agreed.status != 0 ? agreed.status : status;
  } catch (...) {
    const auto agreed = settle_without_context(std::current_exception(), meeting, options, connected);
    if (agreed.prints_failure) print_error(program, agreed.text);
    return agreed.status;
  }
}

}}}  // namespace muster::v0::detail
