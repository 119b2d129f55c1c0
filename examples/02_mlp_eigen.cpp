// A user-defined model, in Eigen, trained by all ranks together: a perceptron with one hidden layer on images such as
// MNIST's. A second run of the same command resumes from the newest checkpoint, or reports that the training has ended.
//
//   $ 02_mlp_eigen train-images-idx3-ubyte,train-labels-idx1-ubyte --ranks 2
//   epoch 1: accuracy ..., loss ..., 6000 samples in ... s
//   epoch 2: accuracy ..., loss ..., 6000 samples in ... s
//   epoch 3: accuracy 1, loss ..., 6000 samples in ... s
//
//   $ mpirun -n 2 02_mlp_eigen train-images-idx3-ubyte,train-labels-idx1-ubyte
//   nothing to do: the training in '02_checkpoints' has ended, after 180 steps
#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

#include <muster/muster.hpp>

using matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

class mlp {
 public:
  mlp(Eigen::Index inputs, Eigen::Index hidden, Eigen::Index classes)
      : inputs_(inputs), hidden_(hidden), classes_(classes) {}

  [[nodiscard]] std::vector<muster::tensor_shape> shapes() const {
    const auto extent = [](Eigen::Index of) { return static_cast<std::size_t>(of); };
    return {{"w1", {extent(hidden_), extent(inputs_)}},
            {"b1", {extent(hidden_)}},
            {"w2", {extent(classes_), extent(hidden_)}},
            {"b2", {extent(classes_)}}};
  }

  /// Initialises the parameters with the same values at every rank.
  void initialise(muster::arena& arena) const {
    muster::random_stream random(1);
    for (const std::size_t weights : {std::size_t{0}, std::size_t{2}}) {
      const double deviation = std::sqrt(2.0 / static_cast<double>(weights == 0 ? inputs_ : hidden_));
      for (float& weight : arena.parameter(weights)) weight = static_cast<float>(random.normal() * deviation);
    }
  }

  /// Sums the gradients of the batch's samples. muster divides by their number over all ranks.
  void forward_backward(const muster::minibatch& batch, muster::backward_pass& pass) {
    const auto rows = static_cast<Eigen::Index>(batch.samples.size());
    const auto parameter = [&](std::size_t tensor, Eigen::Index n, Eigen::Index m) {
      return Eigen::Map<const matrix>(pass.parameter(tensor).data(), n, m);
    };
    const auto gradient = [&](std::size_t tensor, Eigen::Index n, Eigen::Index m) {
      return Eigen::Map<matrix>(pass.gradient(tensor).data(), n, m);
    };
    const auto w1 = parameter(0, hidden_, inputs_), b1 = parameter(1, 1, hidden_);
    const auto w2 = parameter(2, classes_, hidden_), b2 = parameter(3, 1, classes_);
    if (!pass.adds(0)) pass.clear();

    using bytes = Eigen::Matrix<std::uint8_t, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    const Eigen::Map<const bytes> images(batch.values<std::uint8_t>().data(), rows, inputs_);
    const matrix x = images.cast<float>() / 255.0f;
    const matrix h = ((x * w1.transpose()).rowwise() + b1.row(0)).cwiseMax(0.0f);
    matrix p = (h * w2.transpose()).rowwise() + b2.row(0);

    loss = hits = 0;
    samples = static_cast<double>(rows);
    for (Eigen::Index s = 0; s < rows; ++s) {  // softmax, cross entropy, and the gradient of both
      const auto label = static_cast<Eigen::Index>(
          muster::class_of(batch.labels[static_cast<std::size_t>(s)], static_cast<std::size_t>(classes_)));
      Eigen::Index best = 0;
      const float highest = p.row(s).maxCoeff(&best);
      hits += best == label ? 1 : 0;
      p.row(s) = (p.row(s).array() - highest).exp();
      p.row(s) /= p.row(s).sum();
      loss -= std::log(std::max(p(s, label), 1e-30f));
      p(s, label) -= 1;
    }
    gradient(3, 1, classes_) += p.colwise().sum();
    gradient(2, classes_, hidden_) += p.transpose() * h;
    const matrix back = (h.array() > 0).select(p * w2, 0.0f);
    gradient(1, 1, hidden_) += back.colwise().sum();
    gradient(0, hidden_, inputs_) += back.transpose() * x;
  }

  double samples = 0, loss = 0, hits = 0;  // statistics of this rank's last batch, the last two as sums

 private:
  Eigen::Index inputs_, hidden_, classes_;
};

void train(muster::context& context, const std::string& images) {
  auto loader = muster::with_classes(muster::open_source("idx:" + images), 10) | muster::shuffle(1) |
                muster::batch(100) | muster::prefetch(4);
  mlp model(784, 128, 10);
  muster::arena arena(context, model.shapes());
  model.initialise(arena);
  muster::adam optimizer(arena);
  muster::training training(context, arena, optimizer, loader);
  training.run({.epochs = 3, .checkpoint = "02_checkpoints"}, [&](muster::training_step& step) {
    step.backward(step.next(loader), [&](auto& part, auto& pass) { model.forward_backward(part, pass); });
    step.update(optimizer, 0.001);
    step.report("loss", model.loss / model.samples, model.samples);
    step.report("accuracy", model.hits / model.samples, model.samples);
  });
}

int main(int argc, char** argv) {
  // once in each process: the command line is parsed before ranks start
  const auto body = [&](muster::context& context) {
    if (argc > 1 && argv[1][0] == '-') throw muster::unknown_argument(argv[1]);
    if (argc != 2)
      throw muster::configuration_error("no images (the one argument is IMAGES,LABELS); see the launch line");
    context.run([&](muster::group&) { train(context, argv[1]); });
  };
  return muster::run_main(argc, argv, body, {.help = [] { return "usage: 02_mlp_eigen IMAGES,LABELS\n"; }});
}
