// Functions for the command lines of the examples: an error is reported in one line.
#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <muster/core/env.hpp>
#include <muster/core/error.hpp>
#include <muster/core/number.hpp>

namespace examples {

[[noreturn]] inline void refuse(const std::string& problem, const std::string& suggestion) {
  throw muster::configuration_error(problem + "; " + suggestion);
}

// Upper limits beyond which no program here could finish.
constexpr muster::number_range<std::uint64_t> some_epochs{1, 1'000'000}, some_steps{1, 1'000'000'000'000};
constexpr muster::number_range<std::uint64_t> some_samples{1, 1'000'000'000};
constexpr muster::number_range<std::uint64_t> any_seed{0, std::numeric_limits<std::uint64_t>::max()};

/// Adds --max-train-seconds, for `train_options::max_seconds`.
inline void add_time_flag(CLI::App& app, double& to) {
  muster::add_number(app, "--max-train-seconds", to, {0, 1e9},
                     "end when it has trained for so long, whatever it has reached [no limit]");
}

/// Adds --checkpoint and --resume.
inline void add_checkpoint_flags(CLI::App& app, std::string& folder, bool& resume) {
  app.add_option("--checkpoint", folder, "save the training to this folder after every epoch")->type_name("FOLDER");
  app.add_flag("--resume", resume, "resume from the newest checkpoint");
}
inline void require_folder_to_resume(const std::string& folder, bool resume) {
  if (resume && folder.empty()) refuse("--resume has nothing to go on from", "give --checkpoint FOLDER too");
}

/// Adds --holdout: a share of the training set replaces the test set.
inline void add_holdout_flag(CLI::App& app, double& to) {
  muster::add_number(app, "--holdout", to, {0, 0.9},
                     "validate on this share of the training set, taken evenly from it, instead of the test set [0]");
}

/// Returns the number of samples that --holdout selects from the first `samples` samples of a training set.
inline std::uint64_t held_out_of(std::uint64_t samples, double share) {
  return static_cast<std::uint64_t>(std::floor(static_cast<double>(samples) * share));
}

/// Returns true if --holdout selects sample `id` of a training set.
inline bool is_held_out(std::uint64_t id, double share) { return held_out_of(id + 1, share) > held_out_of(id, share); }

/// Throws if the share of a training set is less than a sample.
inline void require_held_out(std::uint64_t samples, double share) {
  if (held_out_of(samples, share) == 0) {
    refuse("--holdout leaves nothing to validate on (it is less than one of " + std::to_string(samples) +
               " training samples)",
           "hold out more");
  }
}

/// Parses by CLI11. The context has already removed muster's flags. Throws muster::configuration_error.
inline void parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ExtrasError&) {
    std::vector<std::string> own;
    for (const auto* option : app.get_options()) own.push_back(option->get_name());
    throw muster::unknown_argument(app.remaining().front(), std::move(own));
  } catch (const CLI::ParseError& error) {
    std::string why = error.what();
    std::replace(why.begin(), why.end(), '\n', ' ');
    while (why.ends_with(' ')) why.pop_back();
    refuse("bad command line (" + why + ")", "--help lists all flags");
  }
}

}  // namespace examples
