#include "served.hpp"

#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include <muster/comm/collectives/barrier.hpp>
#include <muster/elastic/session.hpp>
#include <muster/ps/job.hpp>
#include <muster/train/optimizers/schedule.hpp>
#include <muster/train/ps_parameters.hpp>
#include <muster/train/tracker.hpp>

#include "../command_line.hpp"
#include "evaluation.hpp"
#include "loss.hpp"
#include "processor.hpp"
#include "report.hpp"
#include "saved_model.hpp"

namespace images {
namespace {

void check(const options& chosen) {
  if (chosen.share_statistics) {
    examples::refuse(
        "--sync-batch-norm cannot be used with --mode ps (it has all ranks wait for each other in every "
        "layer)",
        "leave it out, or use another mode");
  }
  if (chosen.stop_at_goal || chosen.max_train_seconds > 0 || chosen.schedule.starts_with("plateau")) {
    examples::refuse(std::string(chosen.stop_at_goal            ? "--stop-at-goal"
                                 : chosen.max_train_seconds > 0 ? "--max-train-seconds"
                                                                : "--schedule " + chosen.schedule) +
                         " cannot be used with --mode ps (one worker alone sees the accuracy, and the others do not "
                         "wait for it)",
                     "leave it out, or use another mode");
  }
}

class served_run {
 public:
  /// `alone` is this worker by itself.
  served_run(const muster::settings& settings, muster::group& workers, muster::group& alone, muster::ps::job& job,
             const image_data& data, const model_description& what, nn::network<float>& net, muster::arena& arena,
             const options& chosen)
      : settings_(settings),
        workers_(workers),
        alone_(alone),
        job_(job),
        what_(what),
        net_(net),
        served_(arena, job),
        chosen_(chosen),
        schedule_(muster::parse_schedule(chosen.schedule)),
        loader_(training_loader(data, chosen.seed, batches_of(chosen), chosen.augment, chosen.stages)),
        test_(test_loader(data, muster::batch(128))),
        tracker_(alone, {.goal = chosen.goal}),
        state_{muster::restored_values{"batch_norm", net.statistics(), muster::state_kind::rank_local},
               loader_.cursor()} {}

  void train() {
    const bool first = workers_.rank() == 0;
    std::optional<muster::group> savers;  // which the death of a server does not end
    if (!chosen_.checkpoint.empty()) savers.emplace(job_.connect_workers());
    if (!resume(savers) && first) served_.assign();
    if (first) print_start();
    muster::barrier(workers_);  // no worker pulls before the parameters are there
    auto session = muster::fixed_session(workers_);
    for (;;) {
      seen_ = {};
      bool more = false;
      {
        auto batches = tracker_.batches();
        more = session.run(state_, [&](muster::step& step) { train_step(step); },
                           {.epochs = chosen_.epochs, .steps = chosen_.steps});
      }
      if (!more) break;
      if (first) end_epoch(session);
      if (savers) muster::ps::save_tables(job_, *savers, chosen_.checkpoint, state_.position());
    }
    if (first) {
      job_.tables().wait_for_others();
      if (!chosen_.save.empty()) {
        served_.pull();
        save_model(chosen_.save, what_, net_);
      }
      print_results(tracker_, chosen_, accuracy_, top5_);
      tracker_.annotate("workers", std::to_string(workers_.size()));
      write_report(tracker_, settings_, chosen_, loader_.name(), top5_);
    }
    job_.finish();
  }

 private:
  /// Collective over the workers: the servers' tables and this worker's place in its data are those that were saved.
  bool resume(std::optional<muster::group>& savers) {
    if (!chosen_.resume) return false;
    const auto saved = muster::ps::load_tables(job_, *savers, chosen_.checkpoint);
    if (saved) state_.move_to(saved->at);
    return saved.has_value();
  }

  void train_step(muster::step& step) {
    const auto batch = loader_.next(step.shard());
    served_.pull();
    served_.begin(schedule_(step));
    const nn::pass now{.images = batch.samples.size(),
                       .statistics = nullptr,
                       .samples = batch.samples,
                       .key = muster::mix(chosen_.seed) + step.number(),
                       .ready = [&](std::size_t tensor) { served_.ready(tensor); }};
    std::span<const float> logits;
    {
      auto phase = tracker_.phase(muster::phase::forward);
      logits = net_.forward(batch.values<float>(), now);
    }
    {
      auto phase = tracker_.phase(muster::phase::loss);
      slopes_.resize(logits.size());
      seen_ += nn::softmax_cross_entropy<float>(logits, batch.labels, net_.classes(),
                                                1.0 / static_cast<double>(batch.global_size), slopes_);
    }
    {
      auto phase = tracker_.phase(muster::phase::backward);
      net_.backward(slopes_, now);
    }
    served_.end();
    tracker_.add_samples(batch.samples.size());
  }

  /// Of the first worker: how good the servers' model is now, with the running statistics of its own images.
  void end_epoch(muster::session& session) {
    nn::totals found;
    session.evaluate(state_, [&](muster::step&) {  // its changes are undone
      auto phase = tracker_.phase(muster::phase::metrics);
      served_.pull();
      found = evaluate(alone_, net_, test_);
    });
    const auto metrics = metrics_of(seen_, found, chosen_);
    accuracy_ = metrics.val_accuracy;
    top5_ = top5_of(found);
    tracker_.end_epoch(alone_, metrics);
    print_epoch(tracker_, loader_.epoch() + 1, top5_);
  }

  void print_start() {
    const auto servers = job_.tables().servers();
    print_header(chosen_, net_, loader_.name(),
                 std::to_string(workers_.size()) + " workers and " + std::to_string(servers) + " servers (" +
                     std::string(workers_.abilities().name) + "); losses, seconds and images of the first worker");
  }

  const muster::settings& settings_;
  muster::group& workers_;
  muster::group& alone_;
  muster::ps::job& job_;
  const model_description& what_;
  nn::network<float>& net_;
  muster::ps_parameters served_;
  const options& chosen_;
  muster::schedule schedule_;
  muster::loader loader_;
  muster::loader test_;
  muster::tracker tracker_;
  muster::state state_;
  std::vector<float> slopes_;
  nn::totals seen_;
  double accuracy_ = 0, top5_ = 0;
};

}  // namespace

void train_served(muster::context& context, muster::group& world, const image_data& data, const options& chosen) {
  check(chosen);
  const nn::flush_denormals flush;
  const model_description what{chosen.model, {data.height, data.width, data.channels}, data.classes};
  const auto net = make_model(what, chosen.how);
  muster::arena arena(context, net->shapes());
  net->bind(arena);
  net->initialise(chosen.seed);
  muster::ps::job job(
      context, world,
      muster::ps::chosen_options(context.configuration(), {muster::ps_parameters::table(arena, chosen.optimizer)}));
  auto workers = world.split(job.is_server() ? 1 : 0);
  auto alone = world.split(world.rank());
  if (job.is_server()) return job.serve();
  served_run(context.configuration(), workers, alone, job, data, what, *net, arena, chosen).train();
}

}  // namespace images
