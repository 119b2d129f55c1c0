#!/bin/sh
# framework.sh needs FRAMEWORK BUILD PYTHON: whether it can be run here.
# framework.sh run FRAMEWORK BUILD PYTHON TASK DATA RANKS BATCH EPOCHS STEPS ALPHA SEED JSON: the same task by each; STEPS 0: all.
set -u
what=$1 framework=$2 build=$3 python=$4
here=$(dirname "$0")
case $framework in
  muster) module=json ;;
  pytorch) module=torch ;;
  tensorflow) module=tensorflow ;;
  *) echo "unknown framework '$framework' (known: muster, pytorch, tensorflow); use one of these"; exit 1 ;;
esac
if [ "$what" = needs ]; then
  for needed in numpy $module; do
    "$python" -c "import importlib.util, sys; sys.exit(importlib.util.find_spec('$needed') is None)" || { echo "$python has no module $needed"; exit 1; }
  done
  if [ "$framework" = pytorch ]; then
    "$python" -c "import torch; torch.zeros(1).numpy()" 2>/dev/null || { echo "$python has a PyTorch for another NumPy; install one by pip"; exit 1; }
  fi
  exit 0
fi
shift 4
task=$1 data=$2 ranks=$3 batch=$4 epochs=$5 steps=$6 alpha=$7 seed=$8 json=$9
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
common="--batch-per-rank $batch --epochs $epochs --seed $seed --json $json"
limit=$([ "$steps" = 0 ] || echo "--steps $steps")
case $framework-$task in
  muster-logistic)
    exec mpirun --oversubscribe -n "$ranks" "$build/examples/logistic_regression" --train "npy:$data/train.npy,$data/train-labels.npy" \
      --test "npy:$data/test.npy,$data/test-labels.npy" --l2 2.5e-6 --schedule "inverse-sqrt:$alpha" $common ;;
  muster-resnet20)
    exec mpirun --oversubscribe -n "$ranks" "$build/examples/resnet" --depth 20 --data "cifar10:$data" --preset mlbench-1a-2019 $common $limit ;;
  muster-vgg16)
    exec mpirun --oversubscribe -n $((ranks + 1)) "$build/examples/vgg16" --mode ps --data "cifar10:$data" --schedule constant:0.0125 $common $limit ;;
  pytorch-*) launch="mpirun --oversubscribe -n $ranks -x PYTHONPATH" script=framework_torch.py ;;
  tensorflow-*) launch="" script=framework_tensorflow.py ;;
esac
exec $launch "$python" "$here/$script" --task "$task" --data "$data" --ranks "$ranks" --batch "$batch" --epochs "$epochs" --steps "$steps" \
  --alpha "$alpha" --seed "$seed" --json "$json"
