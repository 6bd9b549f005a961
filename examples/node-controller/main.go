// Command node-controller is a NodeController of kube-node, as short as a correct one can be. Its machines are processes,
// each of which pretends to be a kubelet.
//
//	node-controller --machines DIR       makes them for NodeClasses with nodeController: processes.example.com
//	node-controller machine NODE …       is one of them; the controller starts it
//
// Numbers in comments are the clauses of docs/node-controllers.md.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/manager/signals"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

type controller struct {
	client.Client               // reads from caches
	direct        client.Reader // reads from the API server
	name          string        // what NodeClasses call it
	namespace     string        // where the operator keeps revisions
	machines      machines
}

func main() {
	log.SetLogger(logr.FromSlogHandler(slog.NewTextHandler(os.Stderr, nil)))
	name := flag.String("name", "processes.example.com", "`spec.nodeController` of the NodeClasses to serve")
	namespace := flag.String("namespace", "kube-node-system", "the operator's `namespace`")
	dir := flag.String("machines", "machines", "`folder` in which machines are known")
	flag.Parse()
	ctx := signals.SetupSignalHandler()
	var err error
	if flag.Arg(0) == "machine" {
		err = runMachine(ctx, flag.Args()[1:])
	} else {
		err = run(ctx, *name, *namespace, machines(*dir))
	}
	if err != nil {
		log.Log.Error(err, "ended")
		os.Exit(1)
	}
}

func run(ctx context.Context, name, namespace string, machines machines) error {
	if err := os.MkdirAll(string(machines), 0o700); err != nil {
		return err
	}
	mgr, err := manager.New(config.GetConfigOrDie(), manager.Options{Metrics: server.Options{BindAddress: "0"}})
	if err != nil {
		return err
	}
	c := &controller{mgr.GetClient(), mgr.GetAPIReader(), name, namespace, machines}
	if err := builder.ControllerManagedBy(mgr).For(object("NodeClass")).Complete(reconcile.Func(c.acceptClass)); err != nil {
		return err
	}
	if err := builder.ControllerManagedBy(mgr).For(&corev1.Node{}).Complete(reconcile.Func(c.reconcileNode)); err != nil {
		return err
	}
	// Nodes may have gone while nobody watched.
	sweep := func(ctx context.Context) error {
		wait.UntilWithContext(ctx, func(ctx context.Context) {
			if err := c.sweep(ctx); err != nil {
				log.Log.Error(err, "cannot sweep machines")
			}
		}, time.Minute)
		return nil
	}
	if err := mgr.Add(manager.RunnableFunc(sweep)); err != nil {
		return err
	}
	return mgr.Start(ctx)
}

// acceptClass says of each class of ours that it is served, and in which generation (1.1, 1.2). Server-side apply of the one
// condition leaves the others to their owners (1.3).
func (c *controller) acceptClass(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	class := object("NodeClass")
	if err := c.Get(ctx, request.NamespacedName, class); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if nested(class, "spec", "nodeController") != c.name {
		return reconcile.Result{}, nil
	}
	since := metav1.Now().UTC().Format(time.RFC3339)
	conditions, _, _ := unstructured.NestedSlice(class.Object, "status", "conditions")
	for _, condition := range conditions {
		if old, ok := condition.(map[string]any); ok && old["type"] == "Accepted" && old["status"] == "True" {
			if old["observedGeneration"] == class.GetGeneration() {
				return reconcile.Result{}, nil
			}
			since = fmt.Sprint(old["lastTransitionTime"])
		}
	}
	accepted := object("NodeClass")
	accepted.SetName(class.GetName())
	accepted.Object["status"] = map[string]any{"conditions": []any{map[string]any{
		"type": "Accepted", "status": "True", "reason": "Accepted", "message": "each machine is a process",
		"observedGeneration": class.GetGeneration(), "lastTransitionTime": since,
	}}}
	return reconcile.Result{}, c.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(accepted),
		client.FieldOwner(c.name), client.ForceOwnership)
}

// object is an empty one of a kind of kube-node's.
func object(kind string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "kube-node.io/v1alpha1", "kind": kind}}
}

// read is an object of kube-node's; an empty one where there is none, as where a Node was written by hand and has no set.
func (c *controller) read(ctx context.Context, kind, name string) (*unstructured.Unstructured, error) {
	found := object(kind)
	if name == "" {
		return found, nil
	}
	return found, client.IgnoreNotFound(c.Get(ctx, client.ObjectKey{Name: name}, found))
}

// nested is a text in an object; empty where there is none.
func nested(object *unstructured.Unstructured, path ...string) string {
	text, _, _ := unstructured.NestedString(object.Object, path...)
	return text
}

// duration is a span of time in an object; 0 where there is none.
func duration(object *unstructured.Unstructured, path ...string) time.Duration {
	span, _ := time.ParseDuration(nested(object, path...))
	return span
}
