#include <muster/train/training.hpp>

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cmath>
#include <csignal>
#include <limits>
#include <mutex>
#include <optional>
#include <set>

#include <muster/comm/collectives/allgather.hpp>
#include <muster/comm/collectives/allreduce.hpp>
#include <muster/comm/collectives/broadcast.hpp>
#include <muster/core/clock.hpp>
#include <muster/core/error.hpp>
#include <muster/core/number.hpp>
#include <muster/elastic/departure.hpp>
#include <muster/train/checkpoint.hpp>
#include <muster/train/sync/compress.hpp>
#include <muster/train/sync/sync_mode.hpp>

#include "../core/wire.hpp"

namespace muster::inline v0 {
namespace {

// Where checkpoints go by the clock, ranks agree what it says after so many steps: a broadcast each time.
constexpr std::uint64_t steps_between_looks = 100;

// Ranks agree so often, in seconds, whether one of them was told to end.
constexpr double between_agreements = 1.0;

std::atomic<bool> told_to_end{false};
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler writes it");

// While one lives SIGTERM asks the training to end. Ranks that are threads share the handler.
class term_handler {
 public:
  term_handler() {
    const std::lock_guard lock(mutex_);
    if (handlers_++ > 0) return;
    told_to_end = false;
    struct sigaction ours {};
    ours.sa_handler = [](int) { told_to_end = true; };
    ours.sa_flags = SA_RESTART;
    (void)::sigaction(SIGTERM, &ours, &former_);
  }
  term_handler(const term_handler&) = delete;
  term_handler& operator=(const term_handler&) = delete;
  ~term_handler() {
    const std::lock_guard lock(mutex_);
    if (--handlers_ == 0) (void)::sigaction(SIGTERM, &former_, nullptr);
  }

 private:
  inline static std::mutex mutex_;
  inline static int handlers_ = 0;
  inline static struct sigaction former_ {};
};

// The largest divisor of `count` that is not above `most`.
std::uint64_t divisor_of(std::uint64_t count, std::uint64_t most) {
  std::uint64_t found = std::min(count, most);
  while (count % found != 0) --found;
  return found;
}

struct interval {
  enum { epochs, steps, minutes } unit = epochs;
  std::uint64_t count = 1;
};

interval parse_interval(const std::string& text) {
  const auto space = text.find(' ');
  const std::string count = space == std::string::npos ? "1" : text.substr(0, space);
  std::string unit = space == std::string::npos ? text : text.substr(space + 1);
  if (unit.ends_with('s')) unit.pop_back();
  interval every;
  every.count = parse_number<std::uint64_t>(count).value_or(0);
  if (unit == "step")
    every.unit = interval::steps;
  else if (unit == "minute")
    every.unit = interval::minutes;
  else if (unit != "epoch")
    every.count = 0;
  if (every.count == 0) {
    throw configuration_error("checkpoints cannot be written every '" + text +
                              R"(' (it is no number of epochs, steps or minutes); write "2 epochs", "500 steps" or )"
                              R"("10 minutes")");
  }
  return every;
}

// The names that any rank has, in order: a rank without samples may have reported nothing.
std::set<std::string> names_of_all(group& ranks, const std::vector<std::string>& mine) {
  detail::wire_writer writer;
  for (const auto& name : mine) writer.add_text(name);
  const std::string own = writer.take();
  const auto size = static_cast<std::size_t>(ranks.size());
  std::vector<std::uint64_t> lengths(size);
  const std::uint64_t length = own.size();
  allgather(ranks, std::span(&length, 1), lengths);
  const auto longest = static_cast<std::size_t>(std::ranges::max(lengths));
  std::vector<std::uint8_t> padded(longest), all(longest * size);
  std::ranges::copy(own, padded.begin());
  if (longest > 0) allgather(ranks, padded, all);
  std::set<std::string> names;
  for (std::size_t r = 0; r < size; ++r) {
    detail::wire_reader reader(std::as_bytes(std::span(all).subspan(r * longest, lengths[r])));
    while (reader.good() && !reader.rest().empty()) names.emplace(reader.text());
  }
  return names;
}

void write_line(std::FILE* to, const epoch_summary& of) {
  std::string text = "epoch " + std::to_string(of.epoch) + ": ";
  char word[96];
  for (const auto& [name, value] : of.reports) {
    std::snprintf(word, sizeof word, " %.6g, ", value);
    text += name + word;
  }
  std::snprintf(word, sizeof word, "%" PRIu64 " samples in %.3g s\n", of.samples, of.seconds);
  std::fputs((text + word).c_str(), to);
  std::fflush(to);
}

}  // namespace

// ---- a step ----

training_step::training_step(training& of, const step& now)
    : step(now.group(), now.generation(), now.number(), now), of_(&of) {}

gradient_sync& training_step::sync() const noexcept { return of_->sync_; }

void training_step::count(std::span<const minibatch> batches, backward_pass& pass) {
  std::uint64_t samples = 0;
  for (const minibatch& batch : batches) samples += batch.samples.size();
  pass.add_samples(samples);
  of_->of_step_.own_samples += samples;
}

void training_step::count(const backward_pass& pass) { of_->of_step_.samples += pass.samples(); }

void training_step::report(std::string_view name, double value, double weight) {
  if (weight == 0) return;
  if (!std::isfinite(value) || !std::isfinite(weight)) {
    throw training_error(std::string(name) + " is " + std::to_string(value) + " in step " + std::to_string(number()) +
                         " at rank " + std::to_string(group().rank()) +
                         " (the training has diverged); lower the learning rate, or clip gradients");
  }
  of_->of_step_.add(name, value * weight, weight);
}

// ---- sums ----

void training::sums::add(std::string_view name, double values, double weights) {
  auto at = std::ranges::find(of, name, &sum::name);
  if (at == of.end()) at = of.insert(of.end(), {std::string(name), 0.0, 0.0});
  at->values += values;
  at->weights += weights;
}

void training::sums::add(const sums& more) {
  samples += more.samples;
  for (const auto& one : more.of) add(one.name, one.values, one.weights);
}

double epoch_summary::operator[](std::string_view name) const noexcept {
  const auto at = std::ranges::find(reports, name, [](const auto& one) { return std::string_view(one.first); });
  return at == reports.end() ? std::numeric_limits<double>::quiet_NaN() : at->second;
}

// ---- the state ----

sync_options training::sync_of_job(const context& of) {
  return {.codec = compress(of.configuration()), .mode = sync_mode_of(of)};
}

void training::describe(state_parts& parts) {
  parts.add(
      "epochs of the training", state_kind::replicated,
      [this] {
        detail::wire_writer writer;
        writer.add(here_.samples);
        for (const auto& one : epochs_) {
          writer.add(one.epoch);
          writer.add(one.samples);
          writer.add(one.seconds);
          writer.add(std::uint64_t{one.reports.size()});
          for (const auto& [name, value] : one.reports) {
            writer.add_text(name);
            writer.add(value);
          }
        }
        const std::string text = writer.take();
        const auto bytes = std::as_bytes(std::span(text));
        return std::vector<std::byte>(bytes.begin(), bytes.end());
      },
      [this](std::span<const std::byte> bytes) {
        detail::wire_reader reader(bytes);
        const auto samples = reader.number();
        std::vector<epoch_summary> read;
        while (reader.good() && !reader.rest().empty()) {
          epoch_summary one{reader.number(), reader.number(), reader.number<double>()};
          for (auto left = reader.count(2 * sizeof(double)); left > 0; --left) {
            std::string name(reader.text());
            one.reports.emplace_back(std::move(name), reader.number<double>());
          }
          read.push_back(std::move(one));
        }
        if (!reader.whole()) {
          throw configuration_error(
              "these epochs of a training cannot be used (they are of another version); use the muster they were "
              "written with");
        }
        epochs_ = std::move(read);
        here_.samples = samples;
      });
  parts.hook(
      [this] {
        here_.add(of_step_);
        if (tracker_ != nullptr) tracker_->add_samples(of_step_.own_samples);
        of_step_ = {};
      },
      [this] { of_step_ = {}; });
}

// ---- a run ----

// Its last word is the change of what no shadow puts back.
void training::end_epoch(step& now, const train_options& options) {
  sums here = here_;
  if (options.each_epoch) {
    training_step evaluation(*this, now);
    options.each_epoch(evaluation);
    here.add(std::exchange(of_step_, {}));
  }
  std::vector<std::string> mine;
  for (const auto& one : here.of) mine.push_back(one.name);
  const auto names = names_of_all(now.group(), mine);
  if (sync_.options().mode.what != sync_mode::kind::allreduce)
    here.samples = allreduce(now.group(), here.samples, muster::sum);
  std::vector<double> all;
  for (const auto& name : names) {
    const auto at = std::ranges::find(here.of, name, &sum::name);
    all.push_back(at == here.of.end() ? 0.0 : at->values);
    all.push_back(at == here.of.end() ? 0.0 : at->weights);
  }
  if (!all.empty()) allreduce(now.group(), all, muster::sum);
  broadcast(now.group(), std::span(&here.seconds, 1), 0);

  epoch_summary made{state_.position().at.epoch + 1, here.samples, here.seconds};
  std::size_t at = 0;
  for (const auto& name : names) {
    if (all[at + 1] != 0) made.reports.emplace_back(name, all[at] / all[at + 1]);
    at += 2;
  }
  if (tracker_ != nullptr) {
    (void)tracker_->end_epoch(
        now.group(), {.train_loss = made["loss"], .val_loss = made["val_loss"], .val_accuracy = made["val_accuracy"]});
  }
  here_ = {};
  if (options.log != nullptr && now.group().rank() == 0) write_line(options.log, made);
  epochs_.push_back(std::move(made));
}

void training::run(const train_options& options, const std::function<void(training_step&)>& f) {
  if (options.epochs == 0 && options.steps == 0) {
    throw configuration_error("a training would not end (there is no limit); give {.epochs = N} or {.steps = N}");
  }
  const auto every = parse_interval(options.checkpoint_every);
  std::optional<checkpoint> store;
  if (!options.checkpoint.empty()) store.emplace(options.checkpoint, checkpoint_options{.keep = options.keep});
  if (store && options.resume) (void)store->load(session_, state_);

  run_limits limits{.epochs = options.epochs, .steps = options.steps, .every = 0};
  // An elastic session hears of SIGTERM by itself, and its limits have to stay: a rank that joins has no others.
  std::optional<term_handler> handler;
  if (!elastic_) {
    handler.emplace();
    limits.every = 1;
  } else if (store && every.unit != interval::epochs) {
    limits.every = every.unit == interval::steps ? every.count : steps_between_looks;
  }
  std::uint64_t ends = 0;
  const auto agree = [&](step& now, double took, std::uint64_t steps) {
    if (elastic_) return;
    ends = allreduce(now.group(), std::uint64_t{told_to_end ? 1u : 0u}, muster::max);
    const double wanted = static_cast<double>(steps) * between_agreements / std::max(took, 1e-6);
    auto next = static_cast<std::uint64_t>(std::clamp(wanted, 1.0, 1e6));
    broadcast(now.group(), next, 0);
    limits.every = store && every.unit == interval::steps ? divisor_of(every.count, next) : next;
  };
  const auto is_over = [&] {
    const auto here = state_.position();
    return (limits.steps != 0 && here.steps >= limits.steps) ||
           (limits.epochs != 0 && state_.epoch_is_over() && here.at.epoch + 1 >= limits.epochs);
  };
  auto saved_at = clock::now();
  const auto is_due = [&](step& now) {
    if (is_over() || ends != 0) return true;
    if (every.unit == interval::epochs)
      return state_.epoch_is_over() && (state_.position().at.epoch + 1) % every.count == 0;
    if (every.unit == interval::steps) return state_.steps() % every.count == 0;
    std::uint8_t due = clock::now() - saved_at >= std::chrono::minutes(every.count) ? 1 : 0;
    broadcast(now.group(), std::span(&due, 1), 0);
    if (due != 0) saved_at = clock::now();
    return due != 0;
  };
  const auto train = [&](step& now) {
    training_step one(*this, now);
    f(one);
  };
  // Which calls follow one another does not depend on the state, for a rank that joins has another one when it leaves
  // out those that the others have behind them; what they do does.
  for (bool began = false;; began = true) {
    std::optional<tracker::batch_clock> batches;
    if (tracker_ != nullptr) batches.emplace(*tracker_);
    const auto begin = clock::now();
    const auto before = state_.steps();
    const bool ran = session_.run(state_, train, limits);
    batches.reset();
    const double took = seconds_since(begin);
    here_.seconds += took;
    if (!ran) {
      if (!began && options.log != nullptr && session_.group().rank() == 0 && store)
        std::fprintf(options.log, "nothing to do: the training in '%s' has ended, after %" PRIu64 " steps\n",
                     options.checkpoint.c_str(), state_.steps());
      return;
    }
    (void)session_.evaluate(state_, [&](step& now) {
      agree(now, took, state_.steps() - before);
      if (state_.epoch_is_over()) end_epoch(now, options);
    });
    if (store)
      store->save(session_, state_,
                  epochs_.empty() ? std::numeric_limits<double>::quiet_NaN() : epochs_.back()["val_accuracy"], is_due);
    if (ends != 0 && !is_over()) {
      throw elastic::departure(elastic::ending::left,
                               "the training was told to end by SIGTERM, after " + std::to_string(state_.steps()) +
                                   " steps (" +
                                   (store ? "they are saved in '" + options.checkpoint + "'" : "nothing was saved") +
                                   "); start the same command to go on");
    }
  }
}

}  // namespace muster::inline v0
