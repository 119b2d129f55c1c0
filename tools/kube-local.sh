#!/usr/bin/env bash
# A private Kubernetes on one machine: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, and nodes that are network
# namespaces with a containerd, a kubelet and a kube-proxy each.
usage='usage: tools/kube-local.sh up DIR | image DIR NAME PROGRAM... | down DIR

up     starts a Kubernetes 1.20 of three nodes, all on this machine. Use it with:  source DIR/environment
       What Debian has as packages is installed from there (etcd, containerd, runc, CNI plugins). The rest is built from the
       source package of Debian with golang-1.19, once: ten minutes on two cores, kept in ~/.cache/muster/kube.
       MUSTER_KUBE_NODES=N and MUSTER_KUBE_CACHE=PATH choose other nodes and another place.
image  gives all nodes an image of these programs, with the libraries that they need and a shell.
down   ends it, with its pods, and removes DIR. Also what an "up" that was killed has left.
Kubernetes asks for root. Pods reach each other and Services by address: there is no DNS, and no way out of the machine.'
case ${1:-} in
  --help) printf '%s\n' "$usage" && exit 0 ;;
  up | down) [ $# = 2 ] || { printf '%s\n' "$usage" >&2 && exit 2; } ;;
  image) [ $# -ge 4 ] || { printf '%s\n' "$usage" >&2 && exit 2; } ;;
  *) printf '%s\n' "$usage" >&2 && exit 2 ;;
esac
what=$1
mkdir -p -- "$2" && folder=$(cd -- "$2" && pwd)
programs=()
for program in "${@:4}"; do programs+=("$(realpath -e -- "$program")") || exit 2; done
source "$(dirname -- "${BASH_SOURCE[0]}")/setup.sh"
source tools/daemons.sh  # setup.sh has gone to the root of the repository
[ "$(id -u)" = 0 ] || die "Kubernetes cannot be started by $(id -un) (its nodes are namespaces with mounts and cgroups of their own); start it as root"
[ ${#folder} -le 60 ] || die "the name $folder is too long for sockets in it (${#folder} characters); use one of at most 60"
cache=${MUSTER_KUBE_CACHE:-$HOME/.cache/muster/kube}
built=(kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy kubectl)

down() {
  local file pid step name net  # nothing is kept, so nothing need end well
  [ -e "$folder/of-kube-local" ] || { [ -z "$(ls -A "$folder")" ] && rmdir "$folder" && return; } ||
    die "$folder was not made by this script (of-kube-local is not in it); name the folder that \"up\" was given"
  # With the first process of a node's PID namespace all others of it end, those of pods too, and its mounts are gone.
  for file in "$folder"/{node*,scheduler,controllers,apiserver,etcd}.pid; do
    pid=$(living "$file") || continue
    case $file in */node*) pkill -KILL -P "$pid" || true ;; *) kill -KILL "$pid" ;; esac
    for ((step = 0; step < 100; ++step)); do living "$file" >/dev/null && sleep 0.1 || break; done
  done
  net=$(cat "$folder/net" 2>/dev/null) || true
  if [ -n "$net" ]; then
    for name in /run/netns/mk"$net"-*; do [ ! -e "$name" ] || ip netns del "${name##*/}"; done
    ip link del "mk$net" 2>/dev/null || true
    for ((step = 0; step < 50; ++step)); do
      find /sys/fs/cgroup -depth -type d -path "*/mk$net*" -exec rmdir {} + 2>/dev/null || true
      [ -n "$(find /sys/fs/cgroup -maxdepth 2 -type d -name "mk$net" -print -quit)" ] && sleep 0.1 || break
    done
  fi
  rm -rf --one-file-system -- "$folder"
}

# Once: the programs of Kubernetes that Debian has as a source package only, or (kubectl) under a name that others use too.
build() {
  local program version=v1.20.2 flags='-s -w' package dirs tree=$cache/go/src/k8s.io/kubernetes
  [ -n "$(ls /etc/apt/sources.list.d/muster-kube.sources 2>/dev/null)" ] || printf '%s\n' 'Types: deb-src' 'URIs: http://deb.debian.org/debian' \
    'Suites: bookworm' 'Components: main' 'Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg' >/etc/apt/sources.list.d/muster-kube.sources
  install_missing golang-1.19-go golang-1.19-src golang-github-modern-go-reflect2-dev dpkg-dev gcc libc6-dev
  say "building Kubernetes in $cache, once"
  mkdir -p "$cache"/{bin,go/src/k8s.io}
  if [ ! -d "$tree" ]; then
    apt-get -q update >/dev/null
    (cd "$cache" && apt-get -q source --download-only kubernetes && rm -rf unpacked && dpkg-source -x kubernetes_*.dsc unpacked) >"$cache/build.log" 2>&1
    mv "$cache/unpacked" "$tree"
    # Its reflect2 1.0.1 knows the maps of Go up to 1.17: with a later Go the API server dies at the first object of a CRD.
    rm -r "$tree/vendor/github.com/modern-go/reflect2"
    cp -r /usr/share/gocode/src/github.com/modern-go/reflect2 "$tree/vendor/github.com/modern-go/"
  fi
  cd "$tree"
  export PATH=/usr/lib/go-1.19/bin:$PATH GOPATH=$cache/go GOCACHE=$cache/go-build GO111MODULE=off GOFLAGS= CGO_ENABLED=0
  for package in client-go/pkg component-base; do
    flags+=" -X k8s.io/kubernetes/vendor/k8s.io/$package/version.gitVersion=$version"
  done
  if [ ! -f pkg/generated/openapi/zz_generated.openapi.go ]; then  # the one generated file that the source comes without
    go build -o "$cache/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
    dirs=$(grep -rl --include='*.go' '+k8s:openapi-gen=' pkg cmd vendor/k8s.io/*/ |
      grep -v -e k8s.io/code-generator -e k8s.io/sample -e kube-openapi -e gengo | xargs -n1 dirname | sort -u | sed 's,^,k8s.io/kubernetes/,' | paste -sd,)
    "$cache/openapi-gen" -i "$dirs" -p k8s.io/kubernetes/pkg/generated/openapi -O zz_generated.openapi \
      -h hack/boilerplate/boilerplate.generatego.txt -r /dev/null
  fi
  gcc -static -O2 -DVERSION=local -o "$cache/bin/pause" build/pause/linux/pause.c
  for program in "${built[@]}"; do
    [ -x "$cache/bin/$program" ] || nice go build -trimpath -ldflags "$flags" -o "$cache/bin/$program" "./cmd/$program"
  done
  cd - >/dev/null
  find "$cache" -mindepth 1 -maxdepth 1 ! -name bin -exec rm -rf {} +
}

# image_file FILE NAME PROGRAM...: an image as "docker save" writes it.
image_file() {
  local file=$1 name=$2 made digest program
  shift 2
  made=$(mktemp -d "$folder/image.XXXXXX")
  mkdir -p "$made"/root/{bin,usr/bin,etc,tmp,lib,lib64,usr/lib} && chmod 1777 "$made/root/tmp"
  for program in "$@"; do
    cp "$program" "$made/root/usr/bin/"
    ! ldd "$program" >/dev/null 2>&1 || ldd "$program" | grep -o '/[^ ]*' | xargs -r -I{} cp -Lu --parents {} "$made/root"
  done
  echo 'root:x:0:0:root:/:/bin/sh' >"$made/root/etc/passwd"
  mv "$made"/root/usr/bin/sh "$made/root/bin/" 2>/dev/null || true
  tar -C "$made/root" --sort=name --mtime=@0 -cf "$made/layer.tar" .
  digest=$(sha256sum "$made/layer.tar" | cut -d' ' -f1)
  printf '{"architecture":"amd64","os":"linux","config":{"Env":["PATH=/usr/bin:/bin"],"Cmd":["/usr/bin/%s"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
    "$(basename -- "${!#}")" "$digest" >"$made/config.json"
  printf '[{"Config":"config.json","RepoTags":["%s"],"Layers":["layer.tar"]}]' "$name" >"$made/manifest.json"
  tar -C "$made" -cf "$file" config.json manifest.json layer.tar
  rm -rf "$made"
}

import_image() { # import_image FILE: into all nodes
  local node
  for node in "$folder"/node*/containerd.sock; do
    ctr --address "$node" --namespace k8s.io images import "$1" >/dev/null
  done
}

case $what in
  down) down && exit 0 ;;
  image)
    [ -e "$folder/of-kube-local" ] || die "no Kubernetes runs in $folder (of-kube-local is not in it); tools/kube-local.sh up $folder"
    tools=()
    for program in sh mkdir cat sleep ls; do tools+=("$(command -v "$program")"); done
    image_file "$folder/image.tar" "$3" "${tools[@]}" "${programs[@]}"
    import_image "$folder/image.tar"
    say "$3: $(du -h "$folder/image.tar" | cut -f1), on $(ls -d "$folder"/node*/ | wc -l) nodes"
    rm "$folder/image.tar"
    exit 0
    ;;
esac
[ -z "$(ls -A "$folder")" ] || die "$folder is not empty (it may have a Kubernetes that runs); tools/kube-local.sh down $folder"
[ -e /sys/fs/cgroup/memory ] || [ -e /sys/fs/cgroup/cgroup.controllers ] || die "there are no cgroups in /sys/fs/cgroup (containers need them); mount them"
install_missing etcd-server containerd runc containernetworking-plugins iproute2 iptables conntrack openssl
absent() { for program in "${built[@]}"; do [ -x "$cache/bin/$program" ] || return 0; done && return 1; }
if absent; then  # one build at a time
  exec {lock}>"${TMPDIR:-/tmp}/muster-kube.lock" && flock "$lock"
  ! absent || build
  flock -u "$lock"
fi
touch "$folder/of-kube-local"  # what "down" removes has this in it
failed() {
  tail -n 5 "$folder"/*.log >&2
  down
  die "Kubernetes does not start (the end of its logs is above); mend that, and run this again"
}
set -E
trap failed ERR

# The machine is .1 of a bridge, node N is .1N, its pods are in 10.NET.N.0/24, and Services in 10.NET.128.0/24.
for net in {200..250}; do ! ip link add "mk$net" type bridge 2>/dev/null || break; done
echo "$net" >"$folder/net"
here=10.$net.0.1
ip address add "$here/24" dev "mk$net" && ip link set "mk$net" up
nodes=${MUSTER_KUBE_NODES:-3}

# The identities: a token each.
install -d -m 700 "$folder"/{keys,etcd}
openssl genrsa -out "$folder/keys/accounts.key" 2048 2>/dev/null
token() { head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n'; }
identity() { # identity FILE USER [GROUP]
  local secret
  secret=$(token)
  (umask 077 && echo "$secret,$2,$2${3:+,\"$3\"}" >>"$folder/keys/tokens.csv" && cat >"$folder/keys/$1") <<END
apiVersion: v1
kind: Config
clusters: [{name: local, cluster: {server: "https://$here:6443", certificate-authority: $folder/keys/apiserver.crt}}]
users: [{name: "$2", user: {token: "$secret"}}]
contexts: [{name: local, context: {cluster: local, user: "$2"}}]
current-context: local
END
}
identity admin admin system:masters
identity controllers system:kube-controller-manager
identity scheduler system:kube-scheduler
identity proxy system:kube-proxy
for ((node = 1; node <= nodes; ++node)); do identity "node$node" "system:node:node$node" system:nodes; done
printf 'export KUBECONFIG=%q PATH=%q:"$PATH"\n' "$folder/keys/admin" "$cache/bin" >"$folder/environment"
source "$folder/environment"

start etcd etcd --data-dir "$folder/etcd" --log-level error --unsafe-no-fsync --listen-client-urls "http://$here:2379" \
  --advertise-client-urls "http://$here:2379" --listen-peer-urls "http://$here:2380" --initial-advertise-peer-urls "http://$here:2380" \
  --initial-cluster "default=http://$here:2380"
cat >"$folder/apiserver.sh" <<END
exec "$cache/bin/kube-apiserver" --etcd-servers=http://$here:2379 --bind-address=$here --advertise-address=$here --secure-port=6443 \\
  --cert-dir="$folder/keys" --token-auth-file="$folder/keys/tokens.csv" --authorization-mode=Node,RBAC --service-cluster-ip-range=10.$net.128.0/24 \\
  --service-account-issuer=https://local --service-account-key-file="$folder/keys/accounts.key" \\
  --service-account-signing-key-file="$folder/keys/accounts.key" --enable-admission-plugins=NodeRestriction --allow-privileged --kubelet-preferred-address-types=InternalIP
END
start apiserver sh "$folder/apiserver.sh"
await kube-apiserver kubectl get --raw /readyz
start scheduler kube-scheduler --kubeconfig="$folder/keys/scheduler" --leader-elect=false --secure-port=0 --port=0

image_file "$folder/pause.tar" muster.local/pause:1 "$cache/bin/pause"
for ((node = 1; node <= nodes; ++node)); do
  home=$folder/node$node net_name=mk$net-$node
  mkdir -p "$home"/{cni,kubelet}
  ip netns add "$net_name"
  ip link add "mk$net-$node" type veth peer name eth0 netns "$net_name"
  ip link set "mk$net-$node" master "mk$net" up
  ip -n "$net_name" address add "10.$net.0.1$node/24" dev eth0
  ip -n "$net_name" link set lo up && ip -n "$net_name" link set eth0 up && ip -n "$net_name" route add default via "$here"
  for ((other = 1; other <= nodes; ++other)); do
    [ "$other" = "$node" ] || ip -n "$net_name" route add "10.$net.$other.0/24" via "10.$net.0.1$other"
  done
  ip route add "10.$net.$node.0/24" via "10.$net.0.1$node"
  cat >"$home/cni/10-bridge.conflist" <<END
{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "cni0", "isGateway": true, "hairpinMode": true,
  "ipam": {"type": "host-local", "dataDir": "$home/addresses", "ranges": [[{"subnet": "10.$net.$node.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
END
  cat >"$home/containerd.toml" <<END
version = 2
root = "$home/containerd"
state = "$home/run"
[grpc]
  address = "$home/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "muster.local/pause:1"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$home/cni"
END
  cat >"$home/kubelet.yaml" <<END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: true}, webhook: {enabled: false}}
authorization: {mode: AlwaysAllow}
cgroupDriver: cgroupfs
cgroupRoot: /mk$net/node$node
enforceNodeAllocatable: []
evictionHard: {memory.available: 100Mi}
imageGCHighThresholdPercent: 100  # there is no registry from which one that was removed would come back
failSwapOn: false
nodeStatusUpdateFrequency: 2s
nodeLeaseDurationSeconds: 8
resolvConf: ""
END
  cat >"$home/proxy.yaml" <<END
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
clientConnection: {kubeconfig: $folder/keys/proxy}
mode: iptables
clusterCIDR: 10.$net.0.0/17
conntrack: {maxPerCore: 0, min: 0}
hostnameOverride: node$node
END
  for group in /sys/fs/cgroup/[!u]*/; do mkdir -p "$group/mk$net/node$node" 2>/dev/null || true; done
  for part in cpus mems; do  # of cpuset a new group has none
    for group in "mk$net" "mk$net/node$node"; do
      [ ! -e "/sys/fs/cgroup/cpuset/$group" ] || cat "/sys/fs/cgroup/cpuset/cpuset.$part" >"/sys/fs/cgroup/cpuset/$group/cpuset.$part"
    done
  done
  cat >"$home/start.sh" <<END
sysctl -qw net.ipv4.ip_forward=1 net.bridge.bridge-nf-call-iptables=1
mount -t tmpfs none /run && mkdir /run/netns
# Of a version 1 and 2 side by side this kubelet makes groups of both, and removes those of version 1 alone: pods would not end.
umount /sys/fs/cgroup/unified 2>/dev/null || true
for part in /var/lib /var/log /opt; do  # what is written there stays in this node
  mkdir -p "$home\$part" "$home/work\$part" && mount -t overlay none -o "lowerdir=\$part,upperdir=$home\$part,workdir=$home/work\$part" "\$part"
done
containerd --config "$home/containerd.toml" >>"$folder/containerd$node.log" 2>&1 &
kube-proxy --config "$home/proxy.yaml" >>"$folder/proxy$node.log" 2>&1 &
kubelet --config "$home/kubelet.yaml" --kubeconfig "$folder/keys/node$node" --root-dir "$home/kubelet" --hostname-override=node$node \\
  --node-ip=10.$net.0.1$node --container-runtime=remote --container-runtime-endpoint="unix://$home/containerd.sock" >>"$folder/kubelet$node.log" 2>&1 &
while :; do wait; sleep 1; done
END
  start "node$node" nsenter --net="/run/netns/$net_name" unshare --mount --propagation=private --pid --fork --kill-child --mount-proc sh "$home/start.sh"
done
for ((node = 1; node <= nodes; ++node)); do
  await containerd ctr --address "$folder/node$node/containerd.sock" version
done
import_image "$folder/pause.tar"
rm "$folder/pause.tar"

install -d -m 777 "$folder/shared"  # a folder of this machine, which pods of all nodes may share by the claim of a user
cat >"$folder/storage.yaml" <<END
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: local, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: kubernetes.io/host-path
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: shared}
spec: {capacity: {storage: 10Gi}, accessModes: [ReadWriteMany], storageClassName: shared, hostPath: {path: $folder/shared}}
END
kubectl apply -f "$folder/storage.yaml" >/dev/null
await "a node" bash -c "[ \"\$(kubectl get nodes | grep -c ' Ready ')\" = $nodes ]"
# Not before: of nodes that it has seen not ready all at once it evicts nothing later, when one is lost.
start controllers kube-controller-manager --kubeconfig="$folder/keys/controllers" --use-service-account-credentials --bind-address=127.0.0.1 \
  --secure-port=0 --port=0 --root-ca-file="$folder/keys/apiserver.crt" --service-account-private-key-file="$folder/keys/accounts.key" --leader-elect=false \
  --enable-hostpath-provisioner --node-monitor-period=1s --node-monitor-grace-period=10s --node-eviction-rate=10
await kube-controller-manager kubectl get serviceaccount default
say "a Kubernetes of $nodes nodes: source $folder/environment; tools/kube-local.sh down $folder ends it"
