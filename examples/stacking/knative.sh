#!/bin/sh
# knative.sh TRANSFER TRAINERS IMAGE: prints the manifests of the four functions for Knative, one driver, TRAINERS trainers, one
# reducer and one meta-trainer, and a secret with AWS_ACCESS_KEY and AWS_SECRET_KEY where TRANSFER is s3; also BUCKET_NAME,
# AWS_REGION, AWS_ENDPOINT_URL, CONCURRENT_TRAINING and ENABLE_TRACING are read. TRANSFER: inline, s3, redis or xdt.
#   sh knative.sh s3 4 registry/stacking:latest | kubectl apply -f -
set -eu
[ $# = 3 ] || { sed -n '2,5s/^# *//p' "$0" >&2; exit 2; }
transfer=$1 trainers=$2 image=$3
case $transfer in
  inline | xdt) ;;
  redis) : "${BUCKET_NAME:?is not set; it is the HOST:PORT of the Redis}" ;;
  s3) : "${AWS_ACCESS_KEY:?is not set}" "${AWS_SECRET_KEY:?is not set}" ;;
  *) echo "knative.sh: TRANSFER cannot be '$transfer' (it is inline, s3, redis or xdt); give one of these" >&2; exit 2 ;;
esac
case $trainers in
  '' | *[!0-9]* | 0*) echo "knative.sh: TRAINERS cannot be '$trainers' (it is a whole number from 1); give one" >&2; exit 2 ;;
esac

# JSON is YAML, whatever a value has in it.
quoted() { printf '"%s"' "$(printf %s "$1" | sed 's/[\\"]/\\&/g')"; }

if [ "$transfer" = s3 ]; then
  cat <<END
apiVersion: v1
kind: Secret
metadata: {name: stacking-s3}
stringData: {AWS_ACCESS_KEY: $(quoted "$AWS_ACCESS_KEY"), AWS_SECRET_KEY: $(quoted "$AWS_SECRET_KEY")}
---
END
fi

# function NAME INSTANCES WORD...
service() {
  name=$1 instances=$2
  shift 2
  words="\"--function\", \"$name\", \"--listen\", \"[::]\", \"-sp\", \"80\""
  for word in "$@"; do words="$words, $(quoted "$word")"; done
  cat <<END
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: $name}
spec:
  template:
    metadata:
      annotations: {autoscaling.knative.dev/minScale: "$instances", autoscaling.knative.dev/maxScale: "$instances"}
    spec:
      containerConcurrency: 1
      containers:
        - image: $(quoted "$image")
          command: [stacking]
          args: [$words]
          ports: [{name: h2c, containerPort: 80}]
          env:
            - {name: TRANSFER_TYPE, value: $(printf %s "$transfer" | tr a-z A-Z)}
            - {name: TrainersNum, value: "$trainers"}
            - {name: BUCKET_NAME, value: $(quoted "${BUCKET_NAME:-vhive-stacking}")}
            - {name: CONCURRENT_TRAINING, value: "${CONCURRENT_TRAINING:-false}"}
            - {name: ENABLE_TRACING, value: "${ENABLE_TRACING:-false}"}
END
  [ "$transfer" = s3 ] || return 0
  cat <<END
            - {name: AWS_REGION, value: $(quoted "${AWS_REGION:-us-west-1}")}
            - {name: AWS_ACCESS_KEY, valueFrom: {secretKeyRef: {name: stacking-s3, key: AWS_ACCESS_KEY}}}
            - {name: AWS_SECRET_KEY, valueFrom: {secretKeyRef: {name: stacking-s3, key: AWS_SECRET_KEY}}}
END
  [ -z "${AWS_ENDPOINT_URL:-}" ] || echo "            - {name: AWS_ENDPOINT_URL, value: $(quoted "$AWS_ENDPOINT_URL")}"
}

zipkin=http://zipkin.istio-system.svc.cluster.local:9411/api/v2/spans
service trainer "$trainers" -zipkin "$zipkin"
echo ---
service reducer 1 -zipkin "$zipkin"
echo ---
service metatrainer 1 -zipkin "$zipkin"
echo ---
service driver 1 -tAddr trainer.default.svc.cluster.local:80 -rAddr reducer.default.svc.cluster.local:80 \
  -mAddr metatrainer.default.svc.cluster.local:80 --data /usr/share/muster/stacking.npy -zipkin "$zipkin"
