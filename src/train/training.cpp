#include <muster/train/training.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include <muster/core/error.hpp>
#include <muster/core/events.hpp>
#include <muster/train/sync/compress.hpp>
#include <muster/train/sync/sync_mode.hpp>

#include "../core/wire.hpp"

namespace muster::inline v0 {
namespace {

// Hears whether its thread calls a collective.
struct collective_watch final : event_sink {
  void record(const event& event) noexcept override {
    if (event.what == activity::communication) called = true;
    if (event_sink* const other = installed.former()) other->record(event);
  }
  bool called = false;
  scoped_event_sink installed{*this};
};

bool is_other(float one, float other) {
  return std::bit_cast<std::uint32_t>(one) != std::bit_cast<std::uint32_t>(other);
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

void training_step::update(const std::function<void()>& by) {
  auto& own = of_->own_updates_;
  const auto parameters = of_->arena_.parameters();
  own.before.assign(parameters.begin(), parameters.end());
  const auto put_back = [&] { std::ranges::copy(own.before, parameters.begin()); };
  collective_watch watch;
  try {
    by();
  } catch (...) {
    put_back();
    throw;
  }
  if (!own.wait) own.after = own.before;  // of several in a step, each has what it changed
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (is_other(parameters[i], own.before[i])) own.after[i] = parameters[i];
  }
  put_back();
  if (watch.called) {
    throw configuration_error(
        "an update called a collective (each rank updates alone); call it in the step, before the update");
  }
  if (std::exchange(own.wait, true)) return;
  of_->arena_.update([&own, parameters] {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      if (is_other(own.after[i], own.before[i])) parameters[i] = own.after[i];
    }
    own.wait = false;
  });
}

void training_step::report(std::string_view name, double value, double weight) {
  if (weight != 0) report_sum(name, value * weight, weight);
}

void training_step::report_sum(std::string_view name, double values, double weight) {
  if (weight == 0) return;
  if (!std::isfinite(values) || !std::isfinite(weight)) {
    throw training_error(std::string(name) + " is " + std::to_string(values) + " in step " + std::to_string(number()) +
                         " at rank " + std::to_string(group().rank()) +
                         " (the training has diverged); lower the learning rate, or clip gradients");
  }
  of_->of_step_.add(name, values, weight);
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
      "course of the training", state_kind::replicated,
      [this] {
        detail::wire_writer writer;
        writer.add(here_.samples);
        writer.add(failures_ + (goes_on_ ? 1 : 0));
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
        const auto failures = reader.number();
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
        failures_ = failures;
      });
  parts.hook(
      [this] {
        here_.add(of_step_);
        if (tracker_ != nullptr) tracker_->add_samples(of_step_.own_samples);
        of_step_ = {};
      },
      [this] {
        of_step_ = {};
        own_updates_.wait = false;
        goes_on_ = false;
      });
}

}  // namespace muster::inline v0
