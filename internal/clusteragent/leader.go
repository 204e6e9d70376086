package clusteragent

import (
	"context"
	"log/slog"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/gpuaas/gpuaas/schema"
)

// The times of the leader election, which are those of Kubernetes' own components.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// lead runs work while this process holds the Lease, until ctx ends. work must return when its context
// ends, and runs again if the Lease is won again. The Lease keeps two processes from doing the same
// work, for example during an update; what keeps them from doing harm is the record.
func lead(ctx context.Context, client kubernetes.Interface, namespace string, log *slog.Logger, work func(context.Context)) error {
	host, err := os.Hostname()
	if err != nil {
		return err
	}
	identity := host + "_" + schema.NewID()
	for ctx.Err() == nil {
		started, ended := make(chan context.Context, 1), make(chan struct{})
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Lock: &resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: namespace, Name: recordName},
				Client: client.CoordinationV1(), LockConfig: resourcelock.ResourceLockConfig{Identity: identity}},
			LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) { started <- ctx },
				OnStoppedLeading: func() {},
			},
		})
		if err != nil {
			return err
		}
		go func() {
			defer close(ended)
			elector.Run(ctx)
		}()
		select {
		case leading := <-started:
			log.Info("this process is the leader", slog.String("identity", identity))
			work(leading)
		case <-ended:
		}
		<-ended
		log.Info("this process is not the leader", slog.String("identity", identity))
	}
	return nil
}
