# The first process of a node, in mount and process namespaces of its own.
set -eu
mount --make-rprivate /
mount -t proc proc /proc
# Files of containerd and the kubelet outside the node's folder are in memory.
for dir in /run /var/lib /var/log; do mount -t tmpfs tmpfs "$dir"; done
# The network plugins run in the network namespace of containerd.
unshare -n containerd -c containerd.toml >containerd.log 2>&1 &
tries=0
until ctr images list >/dev/null 2>&1; do
	tries=$((tries + 1))
	[ "$tries" -lt 600 ] || { cat containerd.log; exit 1; }
	sleep 0.2
done
ctr --namespace k8s.io images import {{.Image}}
{{.Program}} kubelet --config kubelet.yaml --kubeconfig {{.Kubeconfig}} --hostname-override {{.Name}} --cert-dir certificates &
wait
