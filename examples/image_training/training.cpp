#include "training.hpp"

#include <cstdio>
#include <optional>

#include <muster/comm/collectives/allreduce.hpp>
#include <muster/core/atomic_file.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/log.hpp>
#include <muster/core/progress.hpp>
#include <muster/elastic/session.hpp>
#include <muster/train/arena.hpp>
#include <muster/train/checkpoint.hpp>
#include <muster/train/optimizers/optimizer.hpp>
#include <muster/train/optimizers/schedule.hpp>
#include <muster/train/sync/compress.hpp>
#include <muster/train/sync/gradient_sync.hpp>
#include <muster/train/timeline.hpp>
#include <muster/train/tracker.hpp>

#include "../job.hpp"
#include "data.hpp"
#include "evaluation.hpp"
#include "loss.hpp"
#include "processor.hpp"
#include "report.hpp"
#include "saved_model.hpp"
#include "served.hpp"

namespace images {
namespace {

class run {
 public:
  run(muster::context& context, muster::group& world, const image_data& data, const options& chosen)
      : chosen_(chosen),
        ranks_(examples::ranks_of(context)),
        started_as_(examples::describe_ranks(context, world)),
        speaks_first_(world.rank() == 0 && context.launcher().rank == 0),
        what_{chosen.model, {data.height, data.width, data.channels}, data.classes},
        net_(make_model(what_, chosen.how)),
        arena_(context, net_->shapes()),
        sync_(arena_, {.codec = muster::compress(context.configuration()), .mode = muster::sync_mode_of(context)}),
        optimizer_(muster::make_optimizer(arena_, chosen.optimizer)),
        schedule_(muster::parse_schedule(chosen.schedule)),
        loader_(training_loader(data, chosen.seed, batches_of(chosen), chosen.augment, chosen.loader_threads)),
        test_(test_loader(data, muster::batch(128, {.per_rank = true}))),
        timeline_(context),
        tracker_(world, {.goal = chosen.goal}),
        progress_(speaks_first_) {
    net_->bind(arena_);
    net_->initialise(chosen.seed);
    if (!chosen.checkpoint.empty()) store_.emplace(chosen.checkpoint);
    // Statistics of a rank's own are its own state; shared ones are the same everywhere.
    const auto kind = chosen.share_statistics ? muster::state_kind::replicated : muster::state_kind::rank_local;
    state_.emplace(arena_, optimizer_, schedule_, tracker_,
                   muster::shadowed_values{"batch_norm", net_->statistics(), kind}, loader_.cursor());
    session_.emplace(examples::open_session(context, world, [this, &data](muster::group& ranks, bool joined) {
      require_same_everywhere(ranks, data);
      if (chosen_.share_statistics)
        statistics_.emplace(ranks.duplicate());
      else
        share_statistics(ranks, *net_, joined);
    }));
  }

  void train() {
    if (speaks_first_) print_header(chosen_, *net_, loader_.name(), started_as_);
    if (chosen_.resume) go_on();
    while (train_epoch()) {
      progress_.clear();
      const bool done = session_->evaluate(*state_, [&](muster::step& step) { end_epoch(step.group()); });
      if (done && speaks()) print_epoch(tracker_, loader_.epoch() + 1, top5_);
      if (store_) store_->save(*session_, *state_, accuracy());
      if (chosen_.stop_at_goal && tracker_.time_to_goal()) break;
    }
    session_->evaluate(*state_, [&](muster::step& step) {
      save(step.group());
      timeline_.write(step.group());
    });
    if (!speaks()) return;
    if (tracker_.epochs().size() == begun_at_)
      std::printf("nothing was left to train\n");
    else
      print_results(tracker_, chosen_, accuracy(), top5_);
    write_report(tracker_, chosen_, loader_.name(), top5_);
  }

  /// For a training that goes on when there are ranks again: of this one alone.
  void save_what_is_left(muster::group& self) {
    if (!store_) return;
    auto alone = muster::fixed_session(self);
    store_->save(alone, *state_, accuracy());
    muster::set_log_rank(self.rank());  // alone now, and heard
    muster::log(muster::log_level::warning, "saved after step " + std::to_string(state_->steps()) + " in " +
                                                store_->folder() + "; --resume goes on from there");
  }

 private:
  /// Collective: from the newest checkpoint, if there is one.
  void go_on() {
    if (!store_->load(*session_, *state_)) return;
    begun_at_ = tracker_.epochs().size();
    if (!speaks()) return;
    std::printf("goes on after step %llu, in epoch %llu\n", static_cast<unsigned long long>(state_->steps()),
                static_cast<unsigned long long>(loader_.epoch() + 1));
  }

  bool train_epoch() {
    auto batches = tracker_.batches();
    begin_ = muster::clock::now();
    seen_ = {};
    return session_->run(*state_, [&](muster::step& step) { train_step(step); },
                         {.epochs = chosen_.epochs, .steps = chosen_.steps});
  }

  void train_step(muster::step& step) {
    const auto batch = loader_.next(step.slice());
    auto backward = sync_.begin(step.group());
    backward.clear();
    backward.add_samples(batch.samples.size());
    backward.divided_by(static_cast<double>(batch.global_size));
    const nn::pass now{.images = batch.samples.size(),
                       .statistics = statistics_ ? &*statistics_ : nullptr,
                       .samples = batch.samples,
                       .key = muster::mix(chosen_.seed) + step.number(),
                       .ready = [&](std::size_t tensor) { backward.ready(tensor); }};
    std::span<const float> logits;
    {
      auto phase = tracker_.phase(muster::phase::forward);
      logits = net_->forward(batch.values<float>(), now);
    }
    nn::totals sums;
    {
      auto phase = tracker_.phase(muster::phase::loss);
      slopes_.resize(logits.size());
      sums = nn::softmax_cross_entropy<float>(logits, batch.labels, net_->classes(),
                                              1.0 / static_cast<double>(batch.global_size), slopes_);
    }
    {
      auto phase = tracker_.phase(muster::phase::backward);
      net_->backward(slopes_, now);
    }
    backward.wait();
    optimizer_.apply(schedule_(step) * (chosen_.batch_per_rank != 0 ? examples::growth(step, ranks_) : 1.0));
    seen_ += sums;
    tracker_.add_samples(batch.samples.size());
    if (progress_.active()) show_progress(step);
  }

  /// Collective: what the epoch came to. What it changes of the model is undone.
  void end_epoch(muster::group& ranks) {
    nn::totals found;
    {
      auto phase = tracker_.phase(muster::phase::metrics);
      sync_.average(ranks);
      average_statistics(ranks, *net_);
      found = evaluate(ranks, *net_, test_);
    }
    std::array<double, 2> sums = {seen_.loss, static_cast<double>(seen_.images)};
    muster::allreduce(ranks, std::span(sums), muster::sum);
    const auto metrics = metrics_of(sums[0], sums[1], found, chosen_);
    tracker_.end_epoch(ranks, metrics);
    // From here on nothing can fail, and so this is done once.
    schedule_.observe(metrics.val_accuracy);
    top5_ = top5_of(found);
  }

  /// Of the last epoch; 0 before there was one.
  [[nodiscard]] double accuracy() const {
    return tracker_.epochs().empty() ? 0.0 : tracker_.epochs().back().metrics.val_accuracy;
  }

  /// Whether this rank is the one that tells people.
  [[nodiscard]] bool speaks() { return session_->group().rank() == 0; }

  void save(muster::group& ranks) {
    if (chosen_.save.empty()) return;
    sync_.average(ranks);
    average_statistics(ranks, *net_);
    if (ranks.rank() == 0) save_model(chosen_.save, what_, *net_);
  }

  void show_progress(const muster::step& step) {
    const double spent = muster::seconds_since(begin_);
    const double done = static_cast<double>(loader_.step() + 1), all = static_cast<double>(loader_.steps_per_epoch());
    const double images = static_cast<double>(seen_.images);
    char line[128];
    std::snprintf(line, sizeof line, "epoch %llu of %llu, step %.0f of %.0f, %.0f images/s, loss %.4f, %.0f s to go",
                  static_cast<unsigned long long>(step.epoch() + 1), static_cast<unsigned long long>(chosen_.epochs),
                  done, all, images * step.group().size() / spent, seen_.loss / std::max(1.0, images),
                  spent / done * (all - done));
    progress_.update(line);
  }

  const nn::flush_denormals flush_;
  const options& chosen_;
  const int ranks_;  // to begin with
  const std::string started_as_;
  const bool speaks_first_;  // before there is a group
  model_description what_;
  std::unique_ptr<nn::network<float>> net_;
  muster::arena arena_;
  muster::gradient_sync sync_;
  muster::any_optimizer optimizer_;
  muster::schedule schedule_;
  muster::loader loader_;
  muster::loader test_;
  muster::timeline timeline_;
  muster::tracker tracker_;
  muster::progress_line progress_;
  std::vector<float> slopes_;
  nn::totals seen_;
  muster::clock::time_point begin_{};
  double top5_ = 0;
  std::size_t begun_at_ = 0;  // epochs that a checkpoint had
  std::optional<muster::checkpoint> store_;
  std::optional<muster::state> state_;
  std::optional<muster::session> session_;
  /// A duplicate of the ranks for shared statistics, so that their collectives do not have to agree with those of
  /// gradients on an order.
  std::optional<muster::group> statistics_;
};

}  // namespace

int run_program(int argc, char** argv, const program& which) {
  const auto body = [&](muster::context& context) {
    const auto chosen = parse_options(argc, argv, examples::ranks_of(context), context.configuration(), which);
    if (context.launcher().rank == 0) {
      for (const auto& path : {chosen.json, chosen.save}) {
        if (!path.empty()) muster::require_writable(path);
      }
    }
    const auto data = open_images(chosen.data, chosen.seed, chosen.limit);  // ranks that are threads share it
    context.run([&](muster::group& world) {
      if (muster::sync_mode_of(context).what == muster::sync_mode::kind::parameter_server) {
        require_same_everywhere(world, data);
        return train_served(context, world, data, chosen);
      }
      run job(context, world, data, chosen);
      examples::train_or_save([&] { job.train(); }, [&] { job.save_what_is_left(world); });
    });
  };
  return muster::run_main(argc, argv, body, {.help = [&] { return help_text(which); }});
}

}  // namespace images
