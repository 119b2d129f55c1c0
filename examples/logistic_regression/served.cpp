#include "served.hpp"

#include <algorithm>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include <muster/core/events.hpp>
#include <muster/data/loader.hpp>
#include <muster/elastic/session.hpp>
#include <muster/ps/job.hpp>
#include <muster/ps/settings.hpp>
#include <muster/train/optimizers/schedule.hpp>
#include <muster/train/ps_parameters.hpp>
#include <muster/train/settings.hpp>
#include <muster/train/sync/sync_mode.hpp>
#include <muster/train/tracker.hpp>

#include "../command_line.hpp"
#include "../job.hpp"
#include "kernels.hpp"
#include "report.hpp"

namespace logistic {
namespace {

/// What the servers do with a gradient.
std::string update_of(const muster::settings& settings, const problem& data, const options& chosen) {
  const bool own = settings.is_default(muster::setting::optimizer);
  if (chosen.max_train_seconds > 0) {
    examples::refuse(
        "--max-train-seconds cannot be used with --mode ps (each worker has a clock of its own, and the others do not "
        "wait for it)",
        "leave it out, or use another mode");
  }
  if (!own && (chosen.momentum != 0.0f || chosen.l2 != 0.0f)) {
    examples::refuse("--momentum and --l2 cannot be used with " + settings.origin(muster::setting::optimizer) +
                         " (they are of the SGD that it replaces)",
                     "write such as --optimizer momentum:0.9,decay=1e-6");
  }
  if (chosen.l2 != 0.0f && data.train.data.is_sparse()) {
    examples::refuse(
        "--l2 cannot be used with --mode ps on sparse data (it changes every weight in every step, and "
        "workers push those of their own samples)",
        "leave it out, or use another mode");
  }
  return muster::served_update(own ? optimizer_of(chosen) : settings.value(muster::setting::optimizer));
}

muster::ps::table_spec table_of(const muster::settings& settings, const problem& data, const options& chosen) {
  muster::ps::table_spec made{.name = "weights", .update = update_of(settings, data, chosen)};
  if (!data.train.data.is_sparse()) made.size = data.features + 1;  // the bias behind the weights
  return made;
}

/// A worker's copy of the weights, of which those that it asks for are up to date, and its gradient.
class served_model {
 public:
  served_model(muster::ps::client& tables, const problem& data)
      : tables_(tables),
        sparse_(data.train.data.is_sparse()),
        features_(data.features),
        weights_(features_ + 1, 0.0f),
        gradient_(features_ + 1, 0.0f) {}

  /// The weights of these samples' features become what the servers have.
  void pull(const muster::dataset& data, std::span<const muster::sample_id> samples) {
    if (sparse_) find_keys(data, samples);
    pull_found();
  }
  /// Those of all samples of a set.
  void pull_all(const muster::dataset& data) {
    std::vector<muster::sample_id> all(data.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = i;
    pull(data, all);
  }
  [[nodiscard]] model_view view() const { return {std::span(weights_).first(features_), weights_[features_]}; }
  [[nodiscard]] gradient_view gradient() { return {std::span(gradient_).first(features_), &gradient_[features_]}; }
  [[nodiscard]] std::span<const float> weights() const { return weights_; }

  /// The gradient of what was pulled goes to the servers, and is zeros again.
  void push(double learning_rate) {
    under_way_.wait();
    const muster::ps::push_options how{.scale = static_cast<float>(learning_rate)};
    if (sparse_) {
      rows_.resize(keys_.size());
      for (std::size_t i = 0; i < keys_.size(); ++i) rows_[i] = std::exchange(gradient_[keys_[i]], 0.0f);
      under_way_ = tables_.push_async(0, keys_, rows_, how);
    } else {
      pushed_ = gradient_;
      std::fill(gradient_.begin(), gradient_.end(), 0.0f);
      under_way_ = tables_.push_async(0, pushed_, how);
    }
  }

 private:
  void find_keys(const muster::dataset& data, std::span<const muster::sample_id> samples) {
    keys_.clear();
    for (const auto sample : samples) {
      const auto row = data.sparse(sample);
      keys_.insert(keys_.end(), row.indices.begin(), row.indices.end());
    }
    std::sort(keys_.begin(), keys_.end());
    keys_.erase(std::unique(keys_.begin(), keys_.end()), keys_.end());
    keys_.push_back(features_);  // the bias
  }
  void pull_found() {
    if (!sparse_) return tables_.pull(0, weights_);
    rows_.resize(keys_.size());
    tables_.pull(0, keys_, rows_);
    for (std::size_t i = 0; i < keys_.size(); ++i) weights_[keys_[i]] = rows_[i];
  }

  muster::ps::client& tables_;
  bool sparse_;
  std::size_t features_;
  std::vector<float> weights_, gradient_, pushed_;
  std::vector<std::uint64_t> keys_;
  std::vector<float> rows_;
  muster::ps::pending under_way_;  // after what it reads
};

class served_run {
 public:
  /// `alone` is this worker by itself.
  served_run(muster::context& context, muster::group& workers, muster::group& alone, muster::ps::job& job,
             const problem& data, const options& chosen)
      : settings_(context.configuration()),
        session_(muster::fixed_session(workers)),
        workers_(workers),
        alone_(alone),
        job_(job),
        data_(data),
        chosen_(chosen),
        model_(job.tables(), data),
        schedule_(muster::parse_schedule(chosen.schedule)),
        loader_(data.train.data | muster::shuffle(chosen.seed) | muster::batch(chosen.batch)),
        tracker_(alone, {.goal = chosen.goal}),
        state_{loader_.cursor()} {}

  void train() {
    const bool first = workers_.rank() == 0;
    if (first) print_start();
    const auto begun = muster::clock::now();
    for (;;) {
      totals seen;
      samples_ = 0;
      bool more = false;
      {
        auto batches = tracker_.batches();
        more = session_.run(state_, [&](muster::step& step) { train_step(step, seen); }, {.epochs = chosen_.epochs});
      }
      if (!more) break;
      require_finite(seen.loss, loader_.epoch(), chosen_);
      if (first) evaluate_epoch(seen);
    }
    if (first) finish_first(muster::seconds_since(begun));
    job_.finish();
  }

 private:
  void train_step(muster::step& step, totals& seen) {
    const auto batch = loader_.next(step.shard());
    {
      auto phase = tracker_.phase(muster::phase::aggregate);
      const muster::scoped_event measured(muster::activity::communication, "pull", 0);
      model_.pull(data_.train.data, batch.samples);
    }
    {
      auto phase = tracker_.phase(muster::phase::backward);  // forward and loss are part of the same kernel
      seen += add_gradient(data_.train.data, batch.samples, data_.train.targets, model_.view(),
                           1.0f / static_cast<float>(batch.global_size), model_.gradient());
    }
    {
      auto phase = tracker_.phase(muster::phase::aggregate);
      const muster::scoped_event measured(muster::activity::communication, "push", 0);
      model_.push(schedule_(step));
      job_.tables().next_clock();
    }
    samples_ += batch.samples.size();
    tracker_.add_samples(batch.samples.size());
  }

  /// Of the first worker: how good the servers' model is now.
  void evaluate_epoch(const totals& seen) {
    totals found;
    {
      auto phase = tracker_.phase(muster::phase::metrics);
      model_.pull_all(data_.test.data);
      found = evaluate(data_.test.data, 0, data_.test.data.size(), data_.test.targets, model_.view());
    }
    const double test_size = static_cast<double>(data_.test.data.size());
    const muster::epoch_metrics metrics{
        .train_loss = seen.loss / static_cast<double>(std::max<std::size_t>(samples_, 1)),
        .val_loss = found.loss / test_size,
        .val_accuracy = static_cast<double>(found.correct) / test_size,
        .train_accuracy = static_cast<double>(seen.correct) / static_cast<double>(std::max<std::size_t>(samples_, 1))};
    require_finite(metrics.val_loss, loader_.epoch(), chosen_);
    tracker_.end_epoch(alone_, metrics);
    print_epoch(tracker_);
  }

  /// The model when all workers have done their part, which is the one that a run of theirs gives.
  void finish_first(double own_seconds) {
    const auto begun = muster::clock::now();
    job_.tables().wait_for_others();
    const double waited = muster::seconds_since(begun);
    model_.pull_all(data_.test.data);
    const auto tested = evaluate(data_.test.data, 0, data_.test.data.size(), data_.test.targets, model_.view());
    model_.pull_all(data_.train.data);
    const auto trained = evaluate(data_.train.data, 0, data_.train.data.size(), data_.train.targets, model_.view());
    double squares = 0;
    if (chosen_.l2 != 0.0f) {
      for (const float value : model_.weights()) squares += double{value} * double{value};
    }
    const double objective =
        trained.loss / static_cast<double>(data_.train.data.size()) + 0.5 * double{chosen_.l2} * squares;
    const double accuracy = static_cast<double>(tested.correct) / static_cast<double>(data_.test.data.size());
    print_results(tracker_, chosen_, objective);
    std::printf("all workers    test accuracy %.4f, %.3g samples/s over %.3f s (%.3f s of them for the slowest)\n",
                accuracy, static_cast<double>(chosen_.epochs * data_.train.data.size()) / (own_seconds + waited),
                own_seconds + waited, waited);
    std::fflush(stdout);
    if (!chosen_.json.empty()) write_report(objective, accuracy);
  }

  void write_report(double objective, double accuracy) {
    const auto text_of = [](double value) {
      char text[32];
      std::snprintf(text, sizeof text, "%.9g", value);
      return std::string(text);
    };
    tracker_.annotate("accuracy of all workers", text_of(accuracy));
    tracker_.annotate("bytes pushed", std::to_string(job_.tables().bytes_pushed()));
    tracker_.annotate("objective", text_of(objective));
    tracker_.annotate("options", describe(chosen_));
    annotate_resolved(tracker_, settings_, chosen_);
    tracker_.annotate("test", data_.test.data.name());
    tracker_.annotate("train", data_.train.data.name());
    tracker_.annotate("workers", std::to_string(workers_.size()));
    tracker_.write(chosen_.json);
  }

  void print_start() const {
    print_header(data_, chosen_,
                 examples::count_of(workers_.size(), "worker") + " and " +
                     examples::count_of(static_cast<int>(job_.tables().servers()), "server") + " (" +
                     std::string(workers_.abilities().name) + "), " + settings_.value(muster::setting::consistency) +
                     "; losses, seconds and samples of the first worker");
  }

  const muster::settings& settings_;
  muster::session session_;
  muster::group& workers_;
  muster::group& alone_;
  muster::ps::job& job_;
  const problem& data_;
  const options& chosen_;
  served_model model_;
  muster::schedule schedule_;
  muster::loader loader_;
  muster::tracker tracker_;
  muster::state state_;
  std::uint64_t samples_ = 0;  // of this worker in this epoch
};

}  // namespace

void train_served(muster::context& context, muster::group& world, const problem& data, const options& chosen) {
  const auto& settings = context.configuration();
  muster::ps::job job(context, world, muster::ps::chosen_options(settings, {table_of(settings, data, chosen)}));
  auto workers = world.split(job.is_server() ? 1 : 0);
  auto alone = world.split(world.rank());
  if (job.is_server()) return job.serve();
  served_run(context, workers, alone, job, data, chosen).train();
}

}  // namespace logistic
