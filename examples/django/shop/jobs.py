"""The shop's jobs; rota imports the modules named `jobs` of all installed apps."""

from rota import Context
from rota.integrations.django import app
from shop.models import Order


@app.job(retry=3)
def ship(number: int) -> str:
    order = Order.objects.get(pk=number)
    order.shipped = True
    order.save()
    return f"shipped {order.item}"


@app.cron("0 6 * * *")
async def count_open_orders(ctx: Context) -> int:
    count = await Order.objects.filter(shipped=False).acount()
    ctx.log.info("%d orders are open", count)
    return count
