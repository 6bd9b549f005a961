package main

import (
	"context"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

// kube-node's words on a Node.
const (
	finalizer     = "kube-node.io/machine"
	uninitialized = "kube-node.io/uninitialized"
	drainStarted  = "kube-node.io/drain-started"
)

// When to look again at what no event tells of.
const soon = time.Second

func (c *controller) reconcileNode(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	node := &corev1.Node{}
	if err := c.Get(ctx, request.NamespacedName, node); apierrors.IsNotFound(err) {
		return reconcile.Result{}, c.sweep(ctx)
	} else if err != nil {
		return reconcile.Result{}, err
	}
	if node.Labels["kube-node.io/node-controller"] != c.name { // 2.1
		return reconcile.Result{}, nil
	}
	look := c.start
	if node.DeletionTimestamp != nil {
		look = c.leave
	}
	again, err := look(ctx, node)
	if apierrors.IsConflict(err) { // somebody else was faster
		again, err = soon, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: again}, nil
}

// start brings a Node to work: finalizer, machine, and the taint off as its kubelet comes up. When to look again.
func (c *controller) start(ctx context.Context, node *corev1.Node) (time.Duration, error) {
	changed := node.DeepCopy()
	if controllerutil.AddFinalizer(changed, finalizer) { // 3.1: the machine comes with the next look
		return 0, c.write(ctx, changed, node)
	}
	if !c.machines.exists(node.UID) { // 3.4
		machine, err := c.revision(ctx, node)
		if err == nil {
			err = c.machines.start(node, machine)
		}
		if err != nil { // 3.3
			return soon, c.say(ctx, node, "kube-node.io/Machine", corev1.ConditionFalse, "NotMade", err.Error())
		}
	}
	if condition(node, "kube-node.io/Machine") == corev1.ConditionFalse {
		return soon, c.say(ctx, node, "kube-node.io/Machine", corev1.ConditionTrue, "Made", "its process runs")
	}
	changed.Spec.ProviderID = c.name + "://" + string(node.UID) // 3.5
	posted := node.Status.NodeInfo.KubeletVersion != ""
	ready := condition(node, corev1.NodeReady) == corev1.ConditionTrue && c.leaseIsFresh(ctx, node.Name)
	changed.Spec.Taints = slices.DeleteFunc(changed.Spec.Taints, func(taint corev1.Taint) bool {
		goes := ready || posted && taint.Effect == corev1.TaintEffectNoExecute // 4.3, 4.2
		return taint.Key == uninitialized && goes
	})
	if posted && !ready {
		return soon, c.write(ctx, changed, node)
	}
	return 0, c.write(ctx, changed, node)
}

// leave drains a Node, ends its machine and lets it go. When to look again.
func (c *controller) leave(ctx context.Context, node *corev1.Node) (time.Duration, error) {
	changed := node.DeepCopy()
	if c.machines.exists(node.UID) {
		if !node.Spec.Unschedulable { // 5.1; the time of the drain counts from here
			changed.Spec.Unschedulable = true
			metav1.SetMetaDataAnnotation(&changed.ObjectMeta, drainStarted, metav1.Now().UTC().Format(time.RFC3339))
			return 0, c.write(ctx, changed, node)
		}
		if drained, err := c.drain(ctx, node); err != nil || !drained {
			return soon, err
		}
		class, err := c.read(ctx, "NodeClass", node.Labels["kube-node.io/nodeclass"])
		if err != nil {
			return 0, err
		}
		lingers := duration(class, "spec", "deletionTimeout")
		if left := time.Until(node.DeletionTimestamp.Add(lingers)); left > 0 { // 5.5
			return left, nil
		}
		if err := c.machines.stop(node.UID); err != nil {
			return 0, err
		}
	}
	controllerutil.RemoveFinalizer(changed, finalizer) // 5.6
	return 0, client.IgnoreNotFound(c.write(ctx, changed, node))
}

// sweep ends machines whose Node is gone, however it went (3.6).
func (c *controller) sweep(ctx context.Context) error {
	var nodes corev1.NodeList
	if err := c.List(ctx, &nodes); err != nil {
		return err
	}
	for _, uid := range c.machines.list() {
		if !slices.ContainsFunc(nodes.Items, func(node corev1.Node) bool { return node.UID == uid }) {
			if err := c.machines.stop(uid); err != nil {
				return err
			}
		}
	}
	return nil
}

// revision is what a Node's machine is made from, as JSON: never the class, which may be another one by now (3.2).
func (c *controller) revision(ctx context.Context, node *corev1.Node) ([]byte, error) {
	name := node.Labels["kube-node.io/nodeclass"] + "-" + node.Labels["kube-node.io/revision"]
	var revision appsv1.ControllerRevision
	err := c.direct.Get(ctx, types.NamespacedName{Namespace: c.namespace, Name: name}, &revision)
	return revision.Data.Raw, err
}

func (c *controller) leaseIsFresh(ctx context.Context, node string) bool {
	var lease coordinationv1.Lease
	err := c.direct.Get(ctx, types.NamespacedName{Namespace: corev1.NamespaceNodeLease, Name: node}, &lease)
	return err == nil && lease.Spec.RenewTime != nil && time.Since(lease.Spec.RenewTime.Time) < 40*time.Second
}

// write changes a Node in the state that was seen: taints and finalizers are lists that others write, too (2.3).
func (c *controller) write(ctx context.Context, changed, seen *corev1.Node) error {
	if equality.Semantic.DeepEqual(changed, seen) {
		return nil
	}
	return c.Patch(ctx, changed, client.MergeFromWithOptions(seen, client.MergeFromWithOptimisticLock{}))
}

// say writes a condition of ours onto a Node; a strategic merge leaves the kubelet's alone.
func (c *controller) say(
	ctx context.Context, node *corev1.Node, kind corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string,
) error {
	changed := node.DeepCopy()
	setCondition(changed, corev1.NodeCondition{Type: kind, Status: status, Reason: reason, Message: message})
	if equality.Semantic.DeepEqual(changed, node) {
		return nil
	}
	return c.Status().Patch(ctx, changed, client.StrategicMergeFrom(node))
}

// setCondition puts a condition in the place of the one of its type; its time stays while its status does.
func setCondition(node *corev1.Node, says corev1.NodeCondition) {
	says.LastTransitionTime = metav1.Now()
	for at, old := range node.Status.Conditions {
		if old.Type == says.Type {
			if old.Status == says.Status {
				says.LastTransitionTime = old.LastTransitionTime
			}
			node.Status.Conditions[at] = says
			return
		}
	}
	node.Status.Conditions = append(node.Status.Conditions, says)
}

func condition(node *corev1.Node, kind corev1.NodeConditionType) corev1.ConditionStatus {
	for _, condition := range node.Status.Conditions {
		if condition.Type == kind {
			return condition.Status
		}
	}
	return corev1.ConditionUnknown
}
